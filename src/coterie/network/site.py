"""One site, as a function from packets to packets; it knows nothing of how they travel.

A site owns one table. It describes the table, agrees to a run, answers by `engine.site.Site`, and
writes its own model in the end. Whatever a packet holds, `handle` returns a reply. What it says of
a failure are fixed words: errors of this machine may quote a cell, so they stay in its own log.
"""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from coterie.data.curvature import curvatures
from coterie.data.site_table import SiteTable
from coterie.data.table_options import TableOptions
from coterie.engine.codec import BadBytes, decode
from coterie.engine.message import Message
from coterie.engine.site import Site
from coterie.errors import CoterieError
from coterie.network.packets import (
    Answer,
    Ask,
    Away,
    DataTerms,
    Described,
    Dismiss,
    Done,
    Finish,
    Fit,
    Fitted,
    Hello,
    Number,
    Packet,
    Refused,
    Request,
    RunTerms,
    Terms,
    Unable,
    read_head,
    shown,
)
from coterie.network.presence import Presence
from coterie.network.replies import (
    BAD_STATES,
    BAD_TABLE,
    BUG,
    FOR_ITS_OWNER,
    NO_EXPERIMENT,
    NOT_KEPT,
    NOT_WRITTEN,
    Failure,
    packed,
    read_message,
)
from coterie.network.session import Session
from coterie.network.states import Agreed, Kept, SiteFolder
from coterie.network.terms import (
    Built,
    Owner,
    build,
    encoded_rows,
    own_agreement,
    read_schema,
    run_options,
    site_task,
    table_options,
)
from coterie.runs.config import hash_with_salt
from coterie.runs.start import as_asked, model_fingerprint
from coterie.serve.export import export_own
from coterie.version import __version__

log = logging.getLogger("coterie")


class NetworkSite:
    """A client on its own machine, with its table and its folder of private states."""

    def __init__(self, client: str, table: Path, folder: Path, owner: Owner | None = None) -> None:
        self.client = client
        self.table = table
        self.folder = folder
        self.owner = owner or Owner()
        self.presence = Presence(folder)
        self.session: Session | None = None
        self.fault: CoterieError | None = None  # what this machine's owner must mend
        self.last_answer: tuple[Packet, Packet] | None = None  # the same packet is answered alike
        self.read_table = lru_cache(maxsize=1)(self._read_table)

    def handle(self, packet: Packet) -> Packet:
        """The reply to a packet."""
        if self.last_answer is not None and self.last_answer[0] == packet:
            return self.last_answer[1]
        try:
            request = read_head(packet.head, Request)
        except BadBytes as e:
            return packed(NO_EXPERIMENT, Number(0, 0), Refused(str(e)))
        pieces: dict[str, bytes] = {}
        try:
            answer, pieces = self._obey(request, packet.pieces)
        except (BadBytes, PermissionError) as e:
            answer = Refused(str(e))
        except Failure as e:
            answer = Unable(str(e))
        except Exception:  # a bug, whose text may quote a cell
            log.exception("%s: a request was not answered", self.client)
            answer = Unable(BUG)
        if isinstance(answer, Refused | Unable):
            log.warning("%s: a request was not answered: %s.", self.client, answer.reason)
        reply = packed(request.experiment, request.number, answer, pieces)
        if isinstance(request.order, Ask) and isinstance(answer, Done):
            self.last_answer = packet, reply
        return reply

    def _obey(self, request: Request, pieces: dict[str, bytes]) -> tuple[Answer, dict[str, bytes]]:
        order = request.order
        wish = self.presence.wish
        if wish is not None and not isinstance(order, Dismiss):
            return Away(wish), {}
        if isinstance(order, Hello):
            return self._hello(order), {}
        if isinstance(order, Fit):
            return self._fit(order), {}
        if isinstance(order, Terms):
            return self._agree(request, order), {}
        if isinstance(order, Dismiss):
            log.warning("%s: the server says: %s", self.client, shown(order.reason))
            return Done(), {}
        message = read_message(pieces)
        if isinstance(order, Finish):
            return self._finish(request, message), {}
        return Done(), {"upload": self._ask(request, message)}

    # -- before the first round
    def _hello(self, order: Hello) -> Answer:
        """Describe the table."""
        self._check_version(order.coterie)
        self._check_owner(order.data, order.run)
        options = run_options(order.run)
        table = self._table(order.data)
        with self._failing(BAD_TABLE):
            description = table.describe()
            rows = as_asked(table.index, options).roster.rows
        return Described(description, {name: int(n[0]) for name, n in rows._asdict().items()})

    def _check_version(self, version: str) -> None:
        if version != __version__:
            raise PermissionError(f"it has coterie {__version__}, and the server {shown(version)}")

    def _check_owner(self, data: DataTerms, run: RunTerms) -> None:
        """Refuse a run that asks for more than this site's owner allows."""
        if self.owner.label not in (None, data.label):
            raise PermissionError(f"its owner allows the label {self.owner.label} alone")
        fewest = min(data.minimum_rows, run.minimum_rows)
        if fewest < self.owner.minimum_rows:
            raise PermissionError(
                f"its owner allows minimum_rows of {self.owner.minimum_rows} or more, not {fewest}"
            )

    def _table(self, data: DataTerms) -> SiteTable:
        options = table_options(data)
        with self._failing(BAD_TABLE):
            about = self.table.stat()  # a table that its owner has mended is read again
            return self.read_table(options, about.st_size, about.st_mtime_ns)

    def _read_table(self, options: TableOptions, size: int, changed: int) -> SiteTable:
        return SiteTable(self.client, self.table, options)

    def _fit(self, order: Fit) -> Answer:
        """Encode the rows by the schema of all sites; the model, and how steep its loss is."""
        self._check_owner(order.data, order.run)
        options = run_options(order.run)
        schema = read_schema(order.schema)
        table = self._table(order.data)
        with self._failing(BAD_TABLE):
            fed = encoded_rows(table, schema, options)
        task = site_task(fed.roster, order.model, options, self.owner)
        curvature = None
        if order.curvature:
            curvature = float(curvatures(fed.train, fed.kind, order.batch)[0])
        return Fitted(model_fingerprint(task), curvature)

    def _agree(self, request: Request, terms: Terms) -> Answer:
        """Keep what is agreed on; another agreement under the same experiment is refused."""
        self._check_version(terms.coterie)
        self._check_owner(terms.data, terms.run)
        folder = SiteFolder(self.folder, request.experiment, self.client)
        with self._failing(BAD_STATES):
            agreed = folder.agreed()
        if agreed is None:
            self._begin(request, terms, folder)
        elif agreed.terms != terms:
            raise PermissionError("this experiment was agreed on differently before")
        else:
            self._session(request.experiment)
        return Done()

    def _begin(self, request: Request, terms: Terms, folder: SiteFolder) -> None:
        with self._failing(BAD_TABLE):
            self._table(terms.data).describe()  # a latecomer was not asked before what it has
        built = self._build(terms)
        salt = secrets.token_hex(16)
        agreed = Agreed(
            experiment=request.experiment,
            client=self.client,
            terms=terms,
            salt=salt,
            data=hash_with_salt(built.fed.fingerprint(), salt),
        )
        with self._failing(NOT_KEPT):
            folder.agree(agreed)
        site = Site(built.agreement, built.parts)
        self.session = Session(request.experiment, terms, built, site, folder, Number(0, 0))

    def _build(self, terms: Terms) -> Built:
        table = self._table(terms.data)
        with self._failing(BAD_TABLE):
            return build(terms, table, self.owner)

    def _session(self, experiment: str) -> Session:
        """The run of this name: the one in memory, or as this site's files left it."""
        if self.session is not None and self.session.experiment == experiment:
            return self.session
        folder = SiteFolder(self.folder, experiment, self.client)
        with self._failing(BAD_STATES):
            agreed = folder.agreed()
        if agreed is None:
            raise PermissionError("nothing was agreed on with this server")
        built = self._build(agreed.terms)
        site = Site(built.agreement, built.parts)
        with self._failing(BAD_STATES):
            self._check_rows(built, agreed)
            kept = folder.states(site.types)
        site.versions = kept.versions
        self.session = Session(experiment, agreed.terms, built, site, folder, kept.last)
        return self.session

    def _check_rows(self, built: Built, agreed: Agreed) -> None:
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
                with self._failing(NOT_KEPT):
                    session.folder.keep(Kept(site.versions, request.number), site.types)
            except Failure:
                site.versions, site.answered = versions, answered
                raise
        self.session = session._replace(last=request.number)
        return upload

    def _in_order(self, request: Request) -> Session:
        """The run of a request; one that is older than the last is refused.

        It would ask to keep states that the server has gone on from, and drop newer ones.
        """
        session = self._session(request.experiment)
        if request.number < session.last:
            raise PermissionError("it is older than what this site has answered")
        return session

    def _finish(self, request: Request, message: Message) -> Answer:
        """Write this client's own model; it does not leave this machine."""
        session = self._in_order(request)
        alone = Site(own_agreement(session.site.agreement), session.site.parts)
        alone.versions = session.site.versions
        upload, _ = decode(alone.answer(message), alone.types)
        if "model" not in upload.values:
            raise PermissionError("that is not a question for its own model")
        model = upload.values["model"]
        with self._failing(NOT_WRITTEN):
            shutil.rmtree(session.folder.model, ignore_errors=True)
            trained = session.built.trained(session.terms.model)
            export_own(trained, self.client, model, session.folder.model)
        log.info("%s: its own model was written into %s", self.client, session.folder.model)
        return Done()

    # -- failures of this machine
    @contextmanager
    def _failing(self, words: str) -> Iterator[None]:
        """Where this machine fails, its own log says why, and the server is told `words`."""
        try:
            yield
        except (CoterieError, OSError, MemoryError) as e:
            log.error("%s: %s", self.client, e)
            if isinstance(e, CoterieError) and words in FOR_ITS_OWNER:
                self.fault = e
            raise Failure(words) from e
