"""One site, as a function from packets to packets; it knows nothing of how they travel.

A site owns one table. It describes the table, agrees to a run, answers by `engine.site.Site`, and
writes its own model in the end. Whatever a packet holds, `handle` returns a reply. What it says of
a failure are fixed words: errors of this machine may quote a cell, so they stay in its own log.
"""

from __future__ import annotations

import logging
import secrets
import shutil
from pathlib import Path
from typing import NamedTuple

from coterie.core.errors import CoterieError
from coterie.core.version import __version__
from coterie.engines.codec import BadBytes, decode
from coterie.engines.message import Message
from coterie.engines.site import Site
from coterie.network.local_table import (
    BAD_STATES,
    BUG,
    NO_EXPERIMENT,
    NOT_KEPT,
    NOT_WRITTEN,
    FailureLog,
    LocalTable,
    SiteFailure,
    packed,
    read_message,
)
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
    Terms,
    WriteModel,
    read_head,
    sanitize_text,
)
from coterie.network.participation import OwnerStatus, Participation
from coterie.network.states import SiteFolder, StoredStates, StoredTerms
from coterie.network.terms import (
    OwnerPolicy,
    SiteRun,
    own_agreement,
)
from coterie.runs.config import hash_with_salt
from coterie.serve.export import export_client


class SiteSession(NamedTuple):
    """A run that this site takes part in."""

    experiment: str
    terms: Terms
    built: SiteRun
    site: Site
    folder: SiteFolder
    last: RequestNumber  # the last request that was answered


log = logging.getLogger("coterie")
OWNER_WORDS: dict[OwnerStatus | None, str] = {
    "paused": "paused by its owner, until `coterie network unpause`",
    "left": "its owner has left; it tells the server and ends",
    None: "takes part again",
}


class NetworkSite:
    """A client on its own machine, with its table and its folder of private states."""

    def __init__(
        self, client: str, table: Path, folder: Path, owner: OwnerPolicy | None = None
    ) -> None:
        self.client = client
        self.table = table
        self.folder = folder
        self.faults = FailureLog(client)
        self.own = LocalTable(client, table, owner or OwnerPolicy(), self.faults)
        self.participation = Participation(folder)
        self.last_wish: OwnerStatus | None = None  # of its owner, as the log has it
        self.session: SiteSession | None = None
        self.last_answer: tuple[Packet, Packet] | None = None  # the same packet is answered alike

    @property
    def fault(self) -> CoterieError | None:
        """What this machine's owner must mend."""
        return self.faults.last

    def handle(self, packet: Packet) -> Packet:
        """The reply to a packet."""
        if self.last_answer is not None and self.last_answer[0] == packet:
            return self.last_answer[1]
        try:
            request = read_head(packet.head, Request)
        except BadBytes as e:
            return packed(NO_EXPERIMENT, RequestNumber(0, 0), Refused(str(e)))
        pieces: dict[str, bytes] = {}
        try:
            answer, pieces = self._obey(request, packet.pieces)
        except (BadBytes, PermissionError) as e:
            answer = Refused(str(e))
        except SiteFailure as e:
            answer = Failed(str(e))
        except Exception:  # a bug, whose text may quote a cell
            log.exception("%s: a request was not answered", self.client)
            answer = Failed(BUG)
        if isinstance(answer, Refused | Failed):
            log.warning("%s: a request was not answered: %s.", self.client, answer.reason)
        reply = packed(request.experiment, request.number, answer, pieces)
        if isinstance(request.order, CallClient) and isinstance(answer, Done):
            self.last_answer = packet, reply
        return reply

    def _obey(
        self, request: Request, pieces: dict[str, bytes]
    ) -> tuple[ReplyBody, dict[str, bytes]]:
        order = request.order
        wish = self.wish()
        if wish is not None and not isinstance(order, Cancel):
            return NotParticipating(wish), {}
        if isinstance(order, Hello):
            return self._hello(order), {}
        if isinstance(order, CheckModel):
            return self.own.fit(order), {}
        if isinstance(order, Terms):
            return self._agree(request, order), {}
        if isinstance(order, Cancel):
            log.warning("%s: the server says: %s", self.client, sanitize_text(order.reason))
            return Done(), {}
        message = read_message(pieces)
        if isinstance(order, WriteModel):
            return self._finish(request, message), {}
        return Done(), {"upload": self._ask(request, message)}

    def wish(self) -> OwnerStatus | None:
        """Why its owner lets it take part in nothing now; the log has a line per change."""
        wish = self.participation.wish
        if wish != self.last_wish:
            log.info("%s: %s", self.client, OWNER_WORDS[wish])
            self.last_wish = wish
        return wish

    # -- before the first round
    def _hello(self, order: Hello) -> ReplyBody:
        """Describe the table."""
        self._check_version(order.coterie)
        return self.own.describe(order)

    def _check_version(self, version: str) -> None:
        if version != __version__:
            raise PermissionError(
                f"it has coterie {__version__}, and the server {sanitize_text(version)}"
            )

    def _agree(self, request: Request, terms: Terms) -> ReplyBody:
        """Keep what is agreed on; another agreement under the same experiment is refused."""
        self._check_version(terms.coterie)
        self.own.check_owner(terms.data, terms.run)
        folder = SiteFolder(self.folder, request.experiment, self.client)
        with self.faults.report_as(BAD_STATES):
            agreed = folder.agreed()
        if agreed is None:
            self._begin(request, terms, folder)
        elif agreed.terms != terms:
            raise PermissionError("this experiment was agreed on differently before")
        else:
            self._session(request.experiment)
        return Done()

    def _begin(self, request: Request, terms: Terms, folder: SiteFolder) -> None:
        self.own.check_table(terms.data)  # a latecomer was not asked before what it has
        built = self.own.build(terms)
        salt = secrets.token_hex(16)
        agreed = StoredTerms(
            experiment=request.experiment,
            client=self.client,
            terms=terms,
            salt=salt,
            data=hash_with_salt(built.fed.fingerprint(), salt),
        )
        with self.faults.report_as(NOT_KEPT):
            folder.agree(agreed)
        log.info(
            "%s: a new run begins: %s with %d sites for %d rounds, about %s with the model %s",
            self.client, sanitize_text(terms.method), terms.clients, terms.run.rounds,
            sanitize_text(terms.data.label), sanitize_text(terms.model),
        )  # fmt: skip
        site = Site(built.agreement, built.parts)
        self.session = SiteSession(
            request.experiment, terms, built, site, folder, RequestNumber(0, 0)
        )

    def _session(self, experiment: str) -> SiteSession:
        """The run of this name: the one in memory, or as this site's files left it."""
        if self.session is not None and self.session.experiment == experiment:
            return self.session
        folder = SiteFolder(self.folder, experiment, self.client)
        with self.faults.report_as(BAD_STATES):
            agreed = folder.agreed()
        if agreed is None:
            raise PermissionError("nothing was agreed on with this server")
        built = self.own.build(agreed.terms)
        site = Site(built.agreement, built.parts)
        with self.faults.report_as(BAD_STATES):
            self._check_rows(built, agreed)
            kept = folder.states(site.types)
        site.versions = kept.versions
        self.session = SiteSession(experiment, agreed.terms, built, site, folder, kept.last)
        log.info("%s: goes on with a run of %s from its files", self.client, agreed.terms.method)
        return self.session

    def _check_rows(self, built: SiteRun, agreed: StoredTerms) -> None:
        if hash_with_salt(built.fed.fingerprint(), agreed.salt) != agreed.data:
            raise CoterieError(
                f"the rows of {self.table} have changed since the run began", "put them back"
            )

    # -- rounds
    def _ask(self, request: Request, message: Message) -> bytes:
        """Answer, and keep the new private state before the answer leaves."""
        session = self._in_order(request)
        site = session.site
        versions, answered = site.versions, site.answered.copy()
        upload = site.answer(message)
        if site.versions.keys() != versions.keys():
            try:
                with self.faults.report_as(NOT_KEPT):
                    session.folder.keep(StoredStates(site.versions, request.number), site.types)
            except SiteFailure:
                site.versions, site.answered = versions, answered
                raise
        self.session = session._replace(last=request.number)
        return upload

    def _in_order(self, request: Request) -> SiteSession:
        """The run of a request; one that is older than the last is refused.

        It would ask to keep states that the server has gone on from, and drop newer ones.
        """
        session = self._session(request.experiment)
        if request.number < session.last:
            raise PermissionError("it is older than what this site has answered")
        return session

    def _finish(self, request: Request, message: Message) -> ReplyBody:
        """Write this client's own model; it does not leave this machine."""
        session = self._in_order(request)
        alone = Site(own_agreement(session.site.policy), session.site.parts)
        alone.versions = session.site.versions
        upload, _ = decode(alone.answer(message), alone.types)
        if "model" not in upload.values:
            raise PermissionError("that is not a question for its own model")
        model = upload.values["model"]
        with self.faults.report_as(NOT_WRITTEN):
            shutil.rmtree(session.folder.model, ignore_errors=True)
            trained = session.built.trained(session.terms.model)
            export_client(trained, self.client, model, session.folder.model)
        log.info(
            "%s: its own model was written into %s; the node waits for what comes next",
            self.client,
            session.folder.model,
        )
        return Done()
