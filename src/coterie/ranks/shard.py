"""The shard of one rank: its clients, their private states, and the calls that it answers.

Rank 0 runs the server beside its shard. All other ranks answer its messages until it ends
(`serve_rank`).
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.aggregation.clipping import Clipping, NormLimit
from coterie.aggregation.validation import DeclarationChecks
from coterie.core.call import Call, Version, follow
from coterie.core.contract import Algorithm, Rows, Upload, at_round
from coterie.core.errors import CoterieError, Option
from coterie.core.params import Params
from coterie.core.task import Task
from coterie.core.trees import tree_map
from coterie.data import load as load_data
from coterie.data.federation import Federation
from coterie.data.shards import ClientSubset, Shards, make_shards
from coterie.engines.codec import Types, decode, encode, encode_part, types_of
from coterie.engines.evaluate import Evaluation
from coterie.engines.exchange import run_call
from coterie.engines.plan import Plan
from coterie.engines.templates import UploadTemplates
from coterie.engines.vectorised import Vectorised
from coterie.ranks.group import RankGroup, RankMessage
from coterie.ranks.launch import RankInfo, exit_with_launcher
from coterie.runs.config import RunConfig
from coterie.runs.config import decode as decode_config
from coterie.runs.load import RunCode, Trust
from coterie.runs.options import Options
from coterie.runs.run import to_device
from coterie.runs.start import Model, apply_data_options, prepare_data


class RankCall(NamedTuple):
    """A call restricted to the clients of one rank, and how its updates are aggregated."""

    call: Call  # ids are those of the rank's own federation
    reduce: Literal["sum", "stack"]
    clipping: Clipping


class RankShard:
    """The clients of one rank, on a vectorised engine.

    Args:
        rank: Index of the shard.
        method: The algorithm of the run.
        task: Model and loss.
        fed: All clients; only those of this rank are kept.
        options: Options of the run; `options.ranks` is the number of shards.
        plan: Chunk size and threads of each rank.
    """

    def __init__(
        self,
        rank: int,
        method: Algorithm,
        task: Task,
        fed: Federation,
        options: Options,
        plan: Plan,
    ) -> None:
        self.shares: Shards = make_shards(fed.roster, options.ranks, plan.workers)
        clients = self.shares.clients[rank]
        own = prepare_data(method, task, fed, options).subset(clients)
        self.rank = rank
        self.method = method
        self.task = task
        self.roster = own.roster
        self.root = Evaluation(method, options.choose_on)
        self.engine = Vectorised(task, own, plan, ClientSubset(clients, fed.roster))
        self.types = types_of(method)  # that calls and results may contain
        if Rows not in self.types.values():
            self.types["coterie.Rows"] = Rows
        self.templates: UploadTemplates | None = None

    def enroll(self, initial_payload: Any) -> None:
        """Keep the initial message from which clients make their first private state."""
        self.engine.enroll(self.method, initial_payload)
        self.templates = UploadTemplates(self.task, self.roster, self.method, initial_payload)

    def run(self, rank_call: RankCall, like: Upload | None = None) -> PartialAggregate:
        """Run a call on the clients of this rank.

        Args:
            rank_call: The call.
            like: An update with the expected shapes; None runs a dry run to find out.

        Returns:
            The aggregate of the accepted updates.
        """
        call = rank_call.call
        if like is None:
            assert self.templates is not None
            like = self.templates(call)
        checks = DeclarationChecks(call, self.roster)
        aggregator = Aggregator(rank_call.reduce, like, len(call.ids), checks, rank_call.clipping)
        return run_call(self.engine, call, aggregator)

    def read_call(self, common: bytes, own: bytes) -> RankCall:
        """Decode a call that `encode_common` and `encode_own` wrote."""
        (shared, started_from), head = decode(common, self.types)
        (ids, per_client, keys, client_keys), _ = decode(own, self.types)
        # cloned: tensors in a message are not aligned, and sums may differ in the last bit then
        shared, started_from, per_client = tree_map(
            lambda v: v.clone(), (shared, started_from, per_client)
        )
        started_from = to_device(started_from, self.task)
        version = Version(*head["version"])
        owner = follow(at_round(self.root, version.round), head["path"])
        call = Call(
            fn=getattr(owner, head["name"]),
            path=head["path"],
            ids=ids.clone(),
            shared=to_device(shared, self.task),
            per_client=per_client,
            static=head["static"],
            keys=keys.clone(),
            client_keys=client_keys.clone(),
            version=version,
            split=head["split"],
            keeps_private=head["keeps_private"],
            enrolled=head["enrolled"],
        )
        for name in head["is_shared"]:
            started_from[name] = call.shared
        limits = {name: NormLimit(*limit) for name, limit in head["limits"].items()}
        clipping = Clipping(started_from, limits)
        return RankCall(call, head["reduce"], clipping)


def encode_common(rank_call: RankCall, types: Types) -> bytes:
    """Encode the part of a call that is the same for all ranks."""
    call = rank_call.call
    started_from = rank_call.clipping.started_from
    is_shared = [name for name in started_from if equals_shared(started_from[name], call.shared)]
    others = {name: started_from[name] for name in started_from if name not in is_shared}
    return encode(
        (call.shared, others),
        types,
        path=call.path,
        name=call.name,
        static=call.static,
        version=call.version,
        split=call.split,
        keeps_private=call.keeps_private,
        enrolled=call.enrolled,
        reduce=rank_call.reduce,
        is_shared=is_shared,
        limits=rank_call.clipping.limits,
    )


def equals_shared(centres: Params, shared: Any) -> bool:
    """Whether clients start from the shared payload, which is then sent only once."""
    if not isinstance(shared, dict) or shared.keys() != centres.keys():
        return False
    return all(torch.equal(v, shared[k]) for k, v in centres.items())


def encode_own(call: Call, types: Types) -> bytes:
    """Encode the part of a call that is for one rank."""
    return encode((call.ids, call.per_client, call.keys, call.client_keys), types)


def select_clients(call: Call, positions: Tensor, shares: Shards) -> Call:
    """Restrict a call to the clients of one rank, with their ids there."""
    some = call.only(positions)
    return replace(some, ids=shares.local[some.ids])


# ------------------------------------------------------------------------------ other ranks
def load_shard(
    config_text: str, info: RankInfo, model: Model = None, trust: Trust = ()
) -> RankShard:
    """Load the data of a run and keep the shard of this rank.

    Args:
        config_text: Config of the run, as rank 0 sends it.
        info: This rank.
        model: As in `reopen`.
        trust: As in `reopen`.

    Raises:
        CoterieError: The data differ from those of rank 0, or the GPUs do not suffice.
    """
    config = decode_config(
        config_text.encode(), RunConfig, "the config of rank 0", "use one version everywhere"
    )
    check_gpus(config.options.device, info)
    if config.options.device == "cuda":  # each rank of a machine has its own GPU
        config.options = replace(config.options, device=f"cuda:{info.local_rank}")
    own = RunCode("the run", config, None, model, trust)
    method = own.method()
    if not config.origin.data:
        raise CoterieError("ranks load their data from files, and these data were in memory.")
    fed = apply_data_options(load_data(**config.origin.data), config.options)
    if not config.fingerprint.fits_data(fed.fingerprint()):
        raise CoterieError(
            f"its data ({config.roster.source}) differ from those of rank 0",
            "give every rank the same files",
        )
    task = own.task(fed.roster)
    return RankShard(info.rank, method, task, fed, config.options, config.plan)


def check_gpus(device: str, info: RankInfo) -> None:
    """Raise if two ranks would share a GPU, which nccl does not support."""
    gpus = torch.cuda.device_count()
    if device != "cpu" and info.local_size > gpus:
        raise CoterieError(
            f"this machine has {gpus} GPUs for {info.local_size} ranks",
            "start one rank per GPU, or use {}",
            options=[Option("device", "cpu")],
        )


# ------------------------------------------------------------------------------ ranks but 0
LoadShard = Callable[[str], RankShard]  # from the config that rank 0 sends
DescribeError = Callable[[Exception], tuple[str, int]]  # a sentence and an exit status


class RankResult(NamedTuple):
    """The result of a message: bytes for rank 0, and sums to which all ranks contribute."""

    rest: bytes = b""
    sums: Any = ()


class RankWorker:
    """Answers the messages of rank 0."""

    def __init__(self, group: RankGroup, load_shard: LoadShard) -> None:
        self.group = group
        self.load_shard = load_shard
        self.shard: RankShard | None = None

    def serve(self, describe_error: DescribeError, debug: bool = False) -> None:
        """Answer messages until rank 0 ends; send errors to rank 0, which raises them."""
        while True:
            message = self.group.receive()
            if message.kind == "end":
                self.group.confirm_end()
                return
            try:
                result = self.handle(message)
            except Exception as e:
                if debug:
                    traceback.print_exc()
                self.group.report_error(*describe_error(e))
            else:
                self.group.reply(result.rest, result.sums)

    def handle(self, message: RankMessage) -> RankResult:
        """Do what a message says."""
        if message.kind == "open":
            self.shard = None  # free its memory before the next one is loaded
            self.shard = self.load_shard(message.common.decode())
            return RankResult()
        assert self.shard is not None
        types = self.shard.types
        if message.kind == "enroll":
            initial_payload = clone(decode(message.common, types)[0])
            self.shard.enroll(to_device(initial_payload, self.shard.task))
            return RankResult()
        if message.kind == "restore":
            self.shard.engine.restore(clone(decode(message.own, types)[0]))
            return RankResult()
        if message.kind == "snapshot":
            return RankResult(encode(self.shard.engine.snapshot(), types))
        part = self.shard.run(self.shard.read_call(message.common, message.own))
        without_sums = part._replace(totals={}, mass={})
        return RankResult(encode_part(without_sums, types), (part.totals, part.mass))


def clone(tree: Any) -> Any:
    """Copy the tensors of a message, which are not aligned in its bytes."""
    return tree_map(lambda v: v.clone(), tree)


def serve_rank(
    info: RankInfo, load_shard: LoadShard, describe_error: DescribeError, debug: bool = False
) -> None:
    """Run this process as a rank other than 0 until rank 0 ends; call it in the main thread.

    Args:
        info: This rank.
        load_shard: Loads the shard of this rank from the config of a run.
        describe_error: Turns an error into a sentence and an exit status.
        debug: Print tracebacks.
    """
    exit_with_launcher()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # end at once while waiting for other ranks
    group = RankGroup(info)
    group.connect()
    for number in (signal.SIGINT, signal.SIGTERM):  # rank 0 receives them too, and decides
        signal.signal(number, signal.SIG_IGN)
    RankWorker(group, load_shard).serve(describe_error, debug)
    group.close()
