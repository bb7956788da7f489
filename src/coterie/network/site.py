"""A site as a function from packets to packets, independent of the transport.

A site owns one table. It describes the table, agrees to the terms of a run, answers calls with
`engines.site.Site`, and writes its own model at the end. `NetworkSite.handle` returns a reply for
every packet, whatever it contains.
"""

from __future__ import annotations

import json
import logging
import secrets
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from coterie.core.errors import CoterieError, SiteRefusal
from coterie.core.version import __version__
from coterie.engines.codec import BadBytes, decode
from coterie.engines.message import Message
from coterie.engines.site import Site
from coterie.network.local_table import (
    BAD_STATES,
    BAD_TABLE,
    BUG,
    CHANGED,
    NOT_SAVED,
    NOT_WRITTEN,
    FailureLog,
    LocalTable,
    SiteFailure,
    SiteRun,
)
from coterie.network.owner import Disclosure, OwnerStatus, Participation
from coterie.network.packets import (
    CallClient,
    Cancel,
    CheckModel,
    Done,
    Failed,
    Hello,
    NotParticipating,
    Packet,
    Refused,
    ReplyBody,
    Request,
    RequestNumber,
    SecureStage,
    Terms,
    WriteModel,
    pack_reply,
    read_head,
    sanitize_text,
)
from coterie.network.policy import OwnerPolicy
from coterie.network.states import SiteFolder, StoredStates, StoredTerms
from coterie.runs.config import hash_with_salt
from coterie.runs.files import write_text
from coterie.serve.export import export_client

if TYPE_CHECKING:
    from coterie.engines.secure_exchange import SecureSite

log = logging.getLogger("coterie")
OWN_GROUP = "group.json"
OWN_MODEL = frozenset({"personal_model", "unseen_model"})  # functions that give a site's model
STATUS_LOG: dict[OwnerStatus | None, str] = {
    "paused": "paused by its owner, until `coterie network unpause`",
    "left": "its owner left the run; the node informs the server and ends",
    None: "participates again",
}


class SiteSession(NamedTuple):
    """A run in which this site participates."""

    experiment: str
    terms: Terms
    run: SiteRun
    site: Site
    folder: SiteFolder
    last: RequestNumber  # of the last answered call
    secure: SecureSite | None  # under secure sums


class NetworkSite:
    """Answers the packets of a server: handshake, files and failures.

    Calls of client functions go to `engines.site.Site`.

    Args:
        client: Name of the site.
        table: CSV, Excel or Parquet file.
        folder: State folder of the site, for terms, private states and its own model.
        owner: Limits of the site's owner.
        key: The site's file of `coterie network certs`, for secure sums; None: it joins none.
    """

    def __init__(
        self,
        client: str,
        table: Path,
        folder: Path,
        owner: OwnerPolicy | None = None,
        key: Path | None = None,
    ) -> None:
        self.client = client
        self.table = table
        self.folder = folder
        self.key = key
        self.failures = FailureLog(client)
        owner = (owner or OwnerPolicy()).effective()
        self.disclosure = Disclosure(folder, client, owner)
        self.local = LocalTable(client, table, owner, self.disclosure, self.failures)
        self.participation = Participation(folder)
        self.logged_status: OwnerStatus | None = None
        self.session: SiteSession | None = None
        # digest of the last answered call and its reply, in case the call is sent again
        self.last_exchange: tuple[bytes, Packet] | None = None

    @property
    def fault(self) -> CoterieError | None:
        """The problem that the owner of this machine must fix; it ends the node.

        A table that does not fit a run ends only a node that has not yet agreed to any run, whose
        owner is there to see it. Later a server could end the node by asking for another label.
        """
        if self.failures.last_text == BAD_TABLE and any(self.folder.glob("*-run-*")):
            return None
        return self.failures.last

    def handle(self, packet: Packet) -> Packet:
        """Return the reply to a packet. A repeated call gets the same reply and changes nothing."""
        digest = packet.digest()
        if self.last_exchange is not None and self.last_exchange[0] == digest:
            return self.last_exchange[1]
        try:
            request = read_head(packet.head, Request)
        except BadBytes as e:
            return pack_reply(None, Refused(str(e)))
        pieces: dict[str, bytes] = {}
        try:
            body, pieces = self._dispatch(request, packet.pieces)
        except (BadBytes, SiteRefusal) as e:
            body = Refused(str(e))
        except SiteFailure as e:
            body = Failed(str(e))
        except Exception:  # a bug; its message may quote a cell
            log.exception("%s: a request failed", self.client)
            body = Failed(BUG)
        if isinstance(body, Refused):  # failures are in the log already
            log.warning("%s: refused a request: %s.", self.client, body.reason)
        reply = pack_reply(request, body, pieces)
        if isinstance(request.body, CallClient | SecureStage) and isinstance(body, Done):
            self.last_exchange = digest, reply
        return reply

    def _dispatch(
        self, request: Request, pieces: dict[str, bytes]
    ) -> tuple[ReplyBody, dict[str, bytes]]:
        body = request.body
        with self.failures.report_as(BAD_STATES):
            self.disclosure.count_request()
        status = self.owner_status()
        if status is not None and not isinstance(body, Cancel):
            return NotParticipating(status), {}
        if isinstance(body, Hello):
            self._check_version(body.coterie)
            return self.local.describe(body), {}
        if isinstance(body, CheckModel):
            return self.local.check_model(body), {}
        if isinstance(body, Terms):
            return self._agree(request, body), {}
        if isinstance(body, Cancel):
            log.warning("%s: message of the server: %s", self.client, sanitize_text(body.reason))
            return Done(), {}
        if isinstance(body, SecureStage):
            return Done(), {"upload": self._answer_stage(request, body.stage, pieces)}
        if not {"shared", "own"} <= pieces.keys() <= set(Message._fields):
            raise BadBytes("its pieces are not those of a message")
        message = Message(pieces["shared"], pieces["own"], pieces.get("initial_payload"))
        if isinstance(body, WriteModel):
            return self._write_model(request, message), {}
        return Done(), {"upload": self._call(request, message)}

    def owner_status(self) -> OwnerStatus | None:
        """Return whether the owner paused the site or left; log each change once."""
        status = self.participation.status
        if status != self.logged_status:
            log.info("%s: %s", self.client, STATUS_LOG[status])
            self.logged_status = status
        return status

    # -- handshake
    def _check_version(self, version: str) -> None:
        if version != __version__:
            raise SiteRefusal(
                f"it has coterie {__version__}, and the server has {sanitize_text(version)}"
            )

    def _agree(self, request: Request, terms: Terms) -> ReplyBody:
        """Start the run of these terms, or continue it; refuse other terms for its experiment."""
        self._check_version(terms.coterie)
        self.local.check_owner(terms)
        if terms.run.secure and self.key is None:
            raise SiteRefusal("this site has no certificate that could sign keys of secure sums")
        folder = SiteFolder(self.folder, request.experiment, self.client)
        with self.failures.report_as(BAD_STATES):
            stored = folder.read_terms()
        if stored is not None and stored.terms != terms:
            raise SiteRefusal("this experiment has other terms at this site")
        if stored is not None:
            self._open_session(request.experiment)
            return Done()
        self.local.check_terms(terms)
        run = self.local.build_run(terms)
        with self.failures.report_as(NOT_SAVED):
            self.disclosure.count_run()
        salt = secrets.token_hex(16)
        stored = StoredTerms(
            experiment=request.experiment,
            client=self.client,
            terms=terms,
            salt=salt,
            data=hash_with_salt(run.fed.fingerprint(), salt),
        )
        with self.failures.report_as(NOT_SAVED):
            folder.write_terms(stored)
        log.info(
            "%s: a new run begins: %s with %d sites for %d rounds, label %s, model %s",
            self.client, sanitize_text(terms.method), terms.clients, terms.run.rounds,
            sanitize_text(terms.data.label), sanitize_text(terms.model),
        )  # fmt: skip
        site = Site(run.policy, run.parts)
        last = RequestNumber(0, 0)
        secure = self._secure_site(request.experiment, terms, site)
        self.session = SiteSession(request.experiment, terms, run, site, folder, last, secure)
        return Done()

    def _secure_site(self, experiment: str, terms: Terms, site: Site) -> SecureSite | None:
        """What answers calls under secure sums; None without."""
        if not terms.run.secure or self.key is None:
            return None
        from coterie.engines.secure_exchange import SecureSite  # loads cryptography
        from coterie.privacy.identity import read_identity

        return SecureSite(
            site,
            read_identity(self.key),
            experiment.encode(),
            clients=terms.clients,
            min_clients=terms.run.secure_min,
        )

    def _open_session(self, experiment: str) -> SiteSession:
        """Return the session of an experiment: from memory, or restored from this site's files."""
        if self.session is not None and self.session.experiment == experiment:
            return self.session
        folder = SiteFolder(self.folder, experiment, self.client)
        with self.failures.report_as(BAD_STATES):
            stored = folder.read_terms()
        if stored is None:
            raise SiteRefusal("this site has not agreed to this experiment")
        run = self.local.build_run(stored.terms)
        site = Site(run.policy, run.parts)
        with self.failures.report_as(CHANGED):
            if hash_with_salt(run.fed.fingerprint(), stored.salt) != stored.data:
                raise CoterieError(
                    f"the rows of {self.table} changed after the run began", "restore the file"
                )
        with self.failures.report_as(BAD_STATES):
            states = folder.read_states(site.types)
        site.versions = states.versions
        secure = self._secure_site(experiment, stored.terms, site)
        self.session = SiteSession(experiment, stored.terms, run, site, folder, states.last, secure)
        log.info("%s: resumes a run of %s from its files", self.client, stored.terms.method)
        return self.session

    # -- rounds
    def _session_for(self, request: Request) -> SiteSession:
        """Return the session of a request; refuse a request older than the last one.

        An old request would drop private states that the server still needs.
        """
        session = self._open_session(request.experiment)
        if request.number < session.last:
            raise SiteRefusal("it is older than the last request that this site answered")
        return session

    def _call(self, request: Request, message: Message) -> bytes:
        """Run a client function; save the new private state before the upload leaves."""
        session = self._session_for(request)
        site = session.site
        # `answer` replaces `versions` but changes `answered` in place; a version never changes
        versions, answered = site.versions, site.answered.copy()
        if session.secure is not None:
            upload = session.secure.begin(message)
        else:
            upload = site.answer(message)
        if site.versions.keys() != versions.keys():
            try:
                with self.failures.report_as(NOT_SAVED):
                    states = StoredStates(site.versions, request.number)
                    session.folder.write_states(states, site.types)
            except SiteFailure:
                site.versions, site.answered = versions, answered
                raise
        self.session = session._replace(last=request.number)
        assert site.last_answered is not None
        round, _, _, function = site.last_answered
        log.info(
            "%s: round %d: ran %s on its rows and sent %d bytes",
            self.client, round, function, len(upload),
        )  # fmt: skip
        return upload

    def _answer_stage(self, request: Request, stage: str, pieces: dict[str, bytes]) -> bytes:
        """Answer a later stage of a secure sum."""
        session = self._session_for(request)
        if session.secure is None:
            raise SiteRefusal("the run has no secure sums")
        if pieces.keys() != {"payload"}:
            raise BadBytes("its pieces are not those of a secure sum")
        reply = session.secure.answer(stage, pieces["payload"])
        self.session = session._replace(last=request.number)
        return reply

    def _write_model(self, request: Request, message: Message) -> ReplyBody:
        """Write this client's own model, which does not leave this machine."""
        session = self._session_for(request)
        policy = replace(
            session.site.policy, allowed=OWN_MODEL, functions=None, secure=False, only_sums=False
        )
        exporter = Site(policy, session.site.parts)
        exporter.versions = session.site.versions
        upload, _ = decode(exporter.answer(message), exporter.types)
        if "model" not in upload.values:
            raise SiteRefusal("the call does not return a model")
        with self.failures.report_as(NOT_WRITTEN):
            shutil.rmtree(session.folder.model, ignore_errors=True)
            trained = session.run.trained(session.terms.model)
            export_client(trained, self.client, upload.values["model"], session.folder.model)
        log.info(
            "%s: wrote its own model to %s; the node waits for the next run",
            self.client,
            session.folder.model,
        )
        if session.secure is not None:
            with self.failures.report_as(NOT_WRITTEN):
                self._write_group(session)
        return Done()

    def _write_group(self, session: SiteSession) -> None:
        """Log the site's own group and write it to a file: under secure sums nobody else knows."""
        latest = max(session.site.versions)
        group = getattr(session.site.versions[latest], "group", None)
        if group is None:
            return
        text = json.dumps({"round": latest.round, "group": group.tolist()})
        write_text(session.folder.model / OWN_GROUP, text + "\n")
        log.info("%s: its own group, which only this site knows: %s", self.client, group.tolist())
