"""The contract suite: checks that every method must pass, our own and yours.

    coterie check my.py:Mine --clusters 2

or in a test of your own:

    @pytest.mark.parametrize("check", ct.checks.CHECKS)
    def test_mine(check):
        ct.checks.Contract(Mine(clusters=2)).run(check)

Methods run on a small, ragged federation of rotated digits in float64. One client sends NaN,
clients drop out, and only some participate in a round.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie import data
from coterie.core.contract import Algorithm, Data, Upload
from coterie.core.errors import CoterieError
from coterie.core.trees import tree_leaves, tree_map
from coterie.data import Federation
from coterie.engines.clients import SimulatedClients
from coterie.engines.codec import decode, encode
from coterie.engines.plan import Plan
from coterie.engines.wire import Wire
from coterie.metrics import Row
from coterie.runs.load import load_run
from coterie.runs.run import Run
from coterie.runs.start import Model, check_is_method, prepare_run

__all__ = ["CHECKS", "Contract"]
ROUNDS = 3
FAULTS = {"participation": 0.7, "dropout": 0.15}
PLANS = (Plan(True, 4, 2), Plan(True, 100, 1), Plan(False, 3, 2))
SAME = 1e-9  # relative difference of float64 results that count as equal
SAME_FLOAT32 = 1e-4
BROKEN = 3  # the client whose samples are NaN
ATTACKER = 4
NOISE = b"\x08\x00\x00\x00\x00\x00\x00\x00not json, not tensors"


class ContractViolation(CoterieError):
    """A method breaks the contract between methods and engines."""


class Contract:
    """The checks of one method; runs that several checks need are computed once.

    Args:
        method: The method; few local steps make the checks fast.
        model: A model for digits of 8 × 8 pixels in 10 classes, as in `ct.run`.
        adapt: Changes the data for a method that needs other rows, such as two classes.

    Example:
        >>> import coterie as ct
        >>> contract = ct.checks.Contract(ct.FedAvg(local_steps=2), "softmax")
        >>> contract.run("engines_agree")
        >>> "resume_is_exact" in ct.checks.CHECKS
        True
    """

    def __init__(
        self,
        method: Algorithm,
        model: Model = "mlp:12",
        adapt: Callable[[Federation], Federation] = lambda fed: fed,
    ) -> None:
        check_is_method(method)
        self.method = method
        self.model = model
        self.adapt = adapt
        self.fed = example_federation()

    def run(self, check: str) -> None:
        """Run one of `CHECKS`.

        Raises:
            ContractViolation: If the method does not pass it.
        """
        CHECKS[check](self)

    # -- runs
    def train(self, fed: Federation, **options: Any) -> Run:
        """Train the method for a few rounds."""
        run = self.prepare(fed, **options)
        for _ in run.rounds():
            pass
        return run

    def prepare(self, fed: Federation, **options: Any) -> Run:
        """Return a run before its first round."""
        if self.method.needs_all_clients:  # without a server, everybody takes part
            options["participation"] = 1.0
        options = {"rounds": ROUNDS, "dtype": "float64", "eval_every": 2, "seed": 1, **options}
        return prepare_run(self.method, self.adapt(fed), self.model, **options)

    @cached_property
    def loop_under_faults(self) -> Run:
        """What the other engines are compared with."""
        return self.train(broken_federation(), engine="loop", **FAULTS)

    @cached_property
    def never_stopped(self) -> Run:
        """What resumed runs are compared with."""
        return self.train(self.fed, rounds=4, **FAULTS)

    @cached_property
    def silent_attacker(self) -> Any:
        """What everyone reaches if the attacker's last reply cannot be read."""
        run, _ = self.attack(lambda reply, run: NOISE)
        return everything(run)

    def attack(self, forge: Callable[[bytes, Run], bytes]) -> tuple[Run, Row]:
        """Train two rounds, in the last of which one client's reply is forged."""
        run = self.prepare(self.fed, rounds=2, engine="wire", eval_every=50)
        steps = run.rounds()
        next(steps), next(steps)
        assert isinstance(run.engine, Wire)
        run.engine.tamper = lambda i, reply: forge(reply, run) if i == ATTACKER else reply
        return run, next(steps)

    # -- engines
    def engines_agree(self) -> None:
        """The vectorised engine gives the loop's result, whatever its chunks."""
        loop = self.loop_under_faults
        for leaf in tree_leaves(everything(loop)):
            if leaf.is_floating_point() and not bool(leaf.isfinite().all()):
                raise ContractViolation(
                    "the state has NaN or infinity after a client sent NaN: do not use reports of "
                    "rejected clients."
                )
        for plan in PLANS:
            fast = self.train(broken_federation(), plan=plan, **FAULTS)
            gap = distance(everything(fast), everything(loop))
            if not gap < SAME:
                raise ContractViolation(
                    f"vectorised in chunks of {plan.chunk}, the result differs from the loop's by "
                    f"{gap:.1e}: a client's function must not depend on padding or on its "
                    "neighbours (use data.all.mask, data.size and data.batches)."
                )
            for name in ("rejected", "bytes_up"):
                if [row[name] for row in fast.history] != [row[name] for row in loop.history]:
                    raise ContractViolation(f"{name} differs between the loop and chunks.")

    def wire_is_exact(self) -> None:
        """With encoded messages, the result is the loop's to the bit."""
        wire = self.train(broken_federation(), engine="wire", **FAULTS)
        require_same(
            everything(wire), everything(self.loop_under_faults), "the result with encoded messages"
        )
        if scores(wire) != scores(self.loop_under_faults):
            raise ContractViolation("scores differ between the loop and encoded messages.")

    def runs_repeat(self) -> None:
        """The same run twice gives the same bits; in float32 engines agree roughly."""
        options: dict[str, Any] = {"dtype": "float32", "rounds": 2, **FAULTS}
        one, two = (self.train(self.fed, **options) for _ in range(2))
        require_same(everything(one), everything(two), "a second run with the same seed")
        options = {"dtype": "float32", "rounds": 1}
        loop = self.train(self.fed, engine="loop", **options)
        gap = distance(everything(self.train(self.fed, **options)), everything(loop))
        if not gap < SAME_FLOAT32:
            raise ContractViolation(f"in float32 the engines differ by {gap:.1e}.")

    # -- faults
    def no_answers_change_nothing(self) -> None:
        """A round in which nobody answers changes neither models nor private states."""
        run = self.train(self.fed, rounds=1, engine="loop")
        state, private = tree_map(torch.clone, everything(run))
        run.options = replace(run.options, dropout=1 - 1e-15, rounds=2)
        run.step()
        centres = lambda s: run.method.centres(s) or {}
        require_same(centres(run.state), centres(state), "after a round without answers, a centre")
        require_same(private_states(run), private, "after a round without answers, a private state")
        groups = lambda s: [g for g in [run.method.groups(s)] if g is not None]
        require_same(groups(run.state), groups(state), "after a round without answers, a group")

    def evaluation_changes_nothing(self) -> None:
        """An evaluation changes no state, and unseen clients get a usable model."""
        run = self.train(example_federation(unseen=2), rounds=1)
        before = tree_map(torch.clone, everything(run))
        row = run.evaluate(1)
        require_same(everything(run), before, "the state after an evaluation")
        for name in ("loss", "unseen_loss"):
            if not row[name] < 100:
                raise ContractViolation(
                    f"{name} is {row[name]}: model() and join() must return a trained model."
                )

    def groups_are_valid(self) -> None:
        """groups() are cluster numbers or shares, and fit centres()."""
        run = self.never_stopped
        groups, centres = run.method.groups(run.state), run.method.centres(run.state)
        count = 0 if centres is None else max(len(v) for v in centres.values())
        if groups is None:
            if count > 1:
                raise ContractViolation(f"centres() returns {count} models, and groups() None.")
            return
        if len(groups) != len(self.fed):
            raise ContractViolation(f"groups() has {len(groups)} rows for {len(self.fed)} clients.")
        if groups.dim() == 1:
            is_number = groups.dtype == torch.int64
            if not is_number or int(groups.min()) < -1 or int(groups.max()) >= count:
                raise ContractViolation(
                    f"groups() must be int64 from −1 to {count - 1}, since centres() returns "
                    f"{count} models."
                )
            return
        sums = groups.sum(1)
        known = sums[sums > 0]
        if bool((groups < 0).any()) or not torch.allclose(known, torch.ones_like(known)):
            raise ContractViolation("the rows of groups() must be shares that add up to 1, or 0.")

    def bad_uploads_harm_no_one(self) -> None:
        """An upload of NaN or of half a message is rejected and leaves no trace."""
        for forge in (poison, cut):
            run, row = self.attack(forge)
            if row["rejected"] != [self.fed.names[ATTACKER]]:
                if forge is poison and not sends_values(self):
                    continue
                raise ContractViolation(f"an upload is not rejected that is {forge.__doc__}")
            require_same(everything(run), self.silent_attacker, "the state after a rejected upload")

    def lost_answers_leave_no_trace(self) -> None:
        """A client whose answer was lost starts its next one from the state before."""
        run = self.prepare(self.fed, engine="wire", eval_every=50)
        steps = run.rounds()
        next(steps), next(steps)
        assert isinstance(run.engine, Wire)
        of_client = lambda: tree_map(lambda v: v[2].clone(), private_states(run))
        before = of_client()
        run.engine.tamper = lambda i, reply: b"lost" if i == 2 else reply
        next(steps)
        require_same(of_client(), before, "the private state after a lost answer")
        run.engine.tamper = lambda i, reply: reply
        next(steps)
        after = of_client()
        if tree_leaves(after) and same_bits(after, before):
            raise ContractViolation("the private state of a client never changes after a loss.")

    # -- resume
    def resume_is_exact(self) -> None:
        """A run that is killed after a checkpoint ends as one that never stopped."""
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "run"
            run = self.prepare(self.fed, rounds=4, out=out, **FAULTS)
            run.saves_every_round = True
            with suppress(Killed):
                run.train(die_after_two_rounds)
            resumed = load_run(out, self.adapt(self.fed), self.model, self.method)
            if resumed.round != 2:
                raise ContractViolation(f"the checkpoint is of round {resumed.round} instead of 2.")
            resumed.train()
        require_same(
            everything(resumed), everything(self.never_stopped), "the result of a resumed run"
        )


CHECKS: dict[str, Callable[[Contract], None]] = {
    check.__name__: check
    for check in (
        Contract.engines_agree,
        Contract.wire_is_exact,
        Contract.runs_repeat,
        Contract.no_answers_change_nothing,
        Contract.evaluation_changes_nothing,
        Contract.groups_are_valid,
        Contract.bad_uploads_harm_no_one,
        Contract.lost_answers_leave_no_trace,
        Contract.resume_is_exact,
    )
}


# ------------------------------------------------------------------------------ data
def example_federation(
    clients: int = 10, seed: int = 0, unseen: int = 0, groups: int = 2
) -> Federation:
    """Rotated digits, float64, 9 to 30 rows each; names in another order than the clients."""
    made = data.rotated(
        "digits",
        clients=clients,
        samples=30,
        angles=tuple(90 * k for k in range(groups)),
        seed=seed,
    )
    assert made.test is not None
    parts = []
    for i in range(clients):
        x, y = made.train.client(i)
        n = 9 + (7 * i) % 22
        parts.append((x[:n].double(), y[:n]))
    tests = [(made.test.client(i)[0].double(), made.test.client(i)[1]) for i in range(clients)]
    names = [f"site-{(3 * i) % clients:02d}" for i in range(clients)]
    fed = data.from_memory(parts, names=names, test=tests, truth=made.truth, unseen=unseen)
    return replace(fed, classes=10)


def with_nan(fed: Federation, client: int) -> Federation:
    """The same, with one client whose rows are all NaN."""
    x = fed.train.x.clone()
    start = int(fed.train.starts[client])
    x[start : start + int(fed.train.sizes[client])] = torch.nan
    return replace(fed, train=fed.train._replace(x=x))


def broken_federation() -> Federation:
    """The example with unseen clients and one whose updates are NaN."""
    return with_nan(example_federation(unseen=2), BROKEN)


# ------------------------------------------------------------------------------ faults
class Killed(BaseException):
    """Stands for a kill: nothing in the library catches it."""


def die_after_two_rounds(row: Row, run: Run) -> None:
    """End training as a kill does."""
    if row["round"] == 2:
        raise Killed


def poison(reply: bytes, run: Run) -> bytes:
    """NaN."""
    upload, _ = decode(reply, run.types)
    assert isinstance(upload, Upload)
    return encode(
        upload._replace(values=tree_map(lambda v: v * torch.nan, upload.values)), run.types
    )


def cut(reply: bytes, run: Run) -> bytes:
    """half a message."""
    return reply[: len(reply) // 2]


def sends_values(contract: Contract) -> bool:
    """Whether the method's last exchange of a round uploads values."""
    sent: list[bool] = []

    def look(reply: bytes, run: Run) -> bytes:
        upload, _ = decode(reply, run.types)
        sent.append(bool(upload.values))
        return reply

    contract.attack(look)
    return any(sent)


# ------------------------------------------------------------------------------ comparing runs
def private_states(run: Run) -> Any:
    """The private state of every client that trains, a table per leaf, [N, ...]."""
    engine = run.engine
    if isinstance(engine, Wire):
        states = [_state_of_site(run, engine, i) for i in range(len(run.roster))]
    else:
        assert isinstance(engine, SimulatedClients)
        states = []
        for i in range(len(run.roster)):
            key = run.client_keys[i]
            states.append(engine.private.one(i, Data(engine.rows("train", i), key, key), run.task))
    return tree_map(lambda *rows: torch.stack(rows), *states)


def _state_of_site(run: Run, engine: Wire, i: int) -> Any:
    site, accepted = engine.sites[i], engine.accepted[i]
    if accepted in site.versions:
        return site.versions[accepted]
    _, initial_payload = run.method.start(run.task, len(run.roster), run.options.seed)
    key = run.client_keys[i]
    return run.method.enroll(run.task, initial_payload, Data(site.parts["train"], key, key))


def everything(run: Run) -> tuple[Any, Any]:
    """All that a run holds: the server's state and the private states."""
    return run.state, private_states(run)


def scores(run: Run) -> list[Row]:
    """Rows of metrics without times; None for NaN, which is not equal to itself."""
    plain = lambda value: None if value != value else value
    return [{k: plain(v) for k, v in r.items() if "seconds" not in k} for r in run.history]


def distance(a: Any, b: Any) -> float:
    """Largest relative difference between two nests of the same shape."""
    first, second = tree_leaves(a), tree_leaves(b)
    if [v.shape for v in first] != [v.shape for v in second]:
        return torch.inf

    def gap(u: Tensor, v: Tensor) -> float:
        return float((u.double() - v.double()).norm() / (v.double().norm() + 1e-12))

    return max([gap(u, v) for u, v in zip(first, second)], default=0.0)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two nests are equal to the bit."""
    first, second = tree_leaves(a), tree_leaves(b)
    equal = (u.dtype == v.dtype and torch.equal(u, v) for u, v in zip(first, second))
    return len(first) == len(second) and all(equal)


def require_same(a: Any, b: Any, what: str) -> None:
    """Raise a `ContractViolation` unless two nests are equal to the bit."""
    if not same_bits(a, b):
        raise ContractViolation(
            f"{what} differs by {distance(a, b):.1e}, and must be the same to the bit: keep all "
            "that a method remembers in its state or in private states, and draw random numbers "
            "with data.sample, data.batches and ask.rng."
        )
