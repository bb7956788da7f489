"""What a site answers to a server that it need not trust."""

from __future__ import annotations

import gc
import random
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

import coterie as ct
from cases import brief, federation, measured, model_for, rows_for, variants
from coterie.core.call import START, Version
from coterie.core.errors import SiteRefusal
from coterie.engines.codec import BadBytes, decode, encode
from coterie.engines.message import HEADER_BYTES, Limits, Message
from coterie.engines.site import Site
from coterie.engines.wire import Wire
from coterie.runs.run import Run
from coterie.runs.start import prepare_run

REFUSED = (BadBytes, SiteRefusal)


class Asked(NamedTuple):
    """An honest message, with the site as it was before, and what it answered."""

    site: Site
    message: Message
    reply: bytes

    @property
    def head(self) -> dict[str, Any]:
        return decode(self.message.own, self.site.types)[1]

    @property
    def name(self) -> str:
        return self.head["name"]

    def changed(self, **changes: Any) -> Message:
        """The message with other values of its head, or another `shared` or `per_client`."""
        types = self.site.types
        content, head = decode(self.message.own, types)
        shared = self.message.shared
        if "shared" in changes:
            shared = encode(changes.pop("shared"), types)
        if "per_client" in changes:
            content = (changes.pop("per_client"), *content[1:])
        own = encode(content, types, **{**head, **changes})
        return Message(shared, own, self.message.initial_payload)

    def refuses(self, message: Message, reason: str, error: type[Exception] | tuple = REFUSED):
        """The site refuses the message, is as before, and gives the honest answer afterwards."""
        site = twin(self.site)
        with pytest.raises(error, match=reason):
            site.answer(message)
        assert same_state(site, self.site)
        assert site.answer(self.message) == self.reply


def twin(site: Site) -> Site:
    """Another site with the same rows, states and agreement."""
    other = Site(site.policy, site.parts)
    other.versions, other.answered = dict(site.versions), Counter(site.answered)
    return other


def same_state(a: Site, b: Site) -> bool:
    if a.versions.keys() != b.versions.keys() or +a.answered != +b.answered:
        return False
    return all(a.versions[v] is b.versions[v] for v in a.versions)


def strict(run: Run, **agreed: Any) -> Run:
    """The same run; its sites are as real ones are by default, and know the number of rounds."""
    lenient = run.engine.sites[0].policy
    agreed = {"limits": Limits(), "allowed": frozenset(), "rounds": run.options.rounds, **agreed}
    for site in run.engine.sites:
        site.policy = replace(lenient, **agreed)
    return run


def ready(method: ct.Algorithm, rounds: int = 2) -> Run:
    problem = measured(clients=4)
    return prepare_run(
        method, problem.fed, problem.model, rounds=rounds, engine="wire", eval_every=1
    )


@cache
def honest(method: ct.Algorithm, rounds: int = 2, client: int = 0, **agreed: Any) -> list[Asked]:
    """Every message that one site is sent in a run."""
    run = strict(ready(brief(method), rounds=rounds), **agreed)
    asked = []
    site = run.engine.sites[client]
    answer = site.answer

    def recorded(message: Message) -> bytes:
        before = twin(site)
        reply = answer(message)
        asked.append(Asked(before, message, reply))
        return reply

    site.answer = recorded
    for row in run.rounds():
        assert not row["rejected"]
    return asked


def find(asked: list[Asked], name: str, round: int = 1) -> Asked:
    """The message that asks for a function in a round."""
    return next(a for a in asked if a.name == name and a.head["version"][0] == round)


# ------------------------------------------------------------------------------ any bytes
Mutation = Callable[[random.Random, Asked], Message]
STRANGE = [None, True, -1, 10**400, 1e308, float("nan"), "", "x" * 300, [], [[]], {}, {"a": [1]}]
STRANGE += [[0, "train", 1], [1, "start", 0], [-1, "train", 0], [[1, "train", 1]] * 50, "test"]


def flipped(rng: random.Random, asked: Asked) -> Message:
    def flip(raw: bytes) -> bytes:
        changed = bytearray(raw)
        for _ in range(rng.choice([1, 1, 4])):
            changed[rng.randrange(len(raw))] = rng.randrange(256)
        return bytes(changed[: rng.choice([len(raw), len(raw), rng.randrange(len(raw))])])

    return one_piece(rng, asked.message, flip)


def one_piece(rng: random.Random, message: Message, change: Callable[[bytes], bytes]) -> Message:
    field = rng.choice([name for name in message._fields if getattr(message, name) is not None])
    return message._replace(**{field: change(getattr(message, field))})


def other_head(rng: random.Random, asked: Asked) -> Message:
    head = asked.head
    field = rng.choice([*head, "other"])
    value = rng.choice(STRANGE)
    if field == "static" and rng.random() < 0.5:
        value = {**head["static"], rng.choice(["pair", "n", "task", "steps"]): rng.choice(STRANGE)}
    return asked.changed(**{field: value})


def other_tensors(rng: random.Random, asked: Asked) -> Message:
    changes = [
        lambda v: v[None],
        lambda v: v.reshape(-1),
        lambda v: v.new_zeros(*v.shape, 0),
        lambda v: v.new_zeros(0, *v.shape),
        lambda v: v.new_zeros(20_000, 0),
        lambda v: v.expand(3, *v.shape).clone(),
        lambda v: v.half(),
        lambda v: v.long(),
        lambda v: v.bool(),
        lambda v: v.to(torch.complex64),
        lambda v: v * float("nan"),
        lambda v: v.double() * 1e300,
        lambda v: (v, v),
        lambda v: {"weight": v},
        lambda v: (),
    ]

    def change(raw: bytes) -> bytes:
        content, head = decode(raw, asked.site.types)
        leaves, structure = tree_flatten(content)
        if not leaves:
            return encode((torch.zeros(3),) * rng.choice([1, 200]), asked.site.types, **head)
        at = rng.randrange(len(leaves))
        leaves[at] = rng.choice(changes)(leaves[at])
        return encode(tree_unflatten(leaves, structure), asked.site.types, **head)

    return one_piece(rng, asked.message, change)


def other_pieces(rng: random.Random, asked: Asked) -> Message:
    """One piece in the place of another, or nothing."""
    m = asked.message
    pieces = [m.shared, m.own, m.initial_payload, b"", b"\xff" * 100, None]
    return one_piece(rng, m, lambda raw: rng.choice(pieces) or b"")


METHODS = [
    ct.IFCA(clusters=2),
    ct.CFLMGD(clusters=2, patience=1),
    ct.FedSoft(clusters=2),
    ct.CGPFL(clusters=2),
    ct.PFLTC(clusters=2, init="per_client"),
    ct.PDLTC(clusters=2),
    ct.Ditto(),
    ct.L2SGD(lr=0.5),
]
SOME_SLOW = [*METHODS[:2], *(pytest.param(m, marks=pytest.mark.slow) for m in METHODS[2:])]


@pytest.mark.parametrize("method", SOME_SLOW, ids=lambda m: m.name)
def test_whatever_the_bytes_a_site_answers_or_refuses(method):
    asked = honest(method)
    rng = random.Random(method.name)
    reasons = []
    for _ in range(250):
        one = rng.choice(asked)
        mutation = rng.choice([flipped, other_head, other_tensors, other_pieces])
        site = twin(one.site)
        try:
            site.answer(mutation(rng, one))
        except REFUSED as e:
            reasons.append(str(e))
            assert same_state(site, one.site)
            assert site.answer(one.message) == one.reply
    assert len(reasons) > 100, "most mutations make messages that no server sends"
    assert all(len(reason) < 300 and "\n" not in reason for reason in reasons)


# ------------------------------------------------------------------------------ limits
def test_a_message_that_is_too_long_is_refused_before_it_is_decoded(monkeypatch):
    one = find(honest(ct.IFCA(clusters=2)), "train")
    most = one.site.policy.reader.max_bytes
    assert most < 2 * HEADER_BYTES, "a few models of four numbers, and room for a head"

    def never(raw: bytes) -> Any:
        raise AssertionError("it was decoded")

    with monkeypatch.context() as patch:
        patch.setattr("coterie.engines.codec.load", never)
        too_long = one.message._replace(own=b"0" * (most + 1))
        with pytest.raises(BadBytes, match="at most"):
            one.site.answer(too_long)
    one.refuses(one.message._replace(shared=b"0" * (most + 1)), "at most")


@pytest.mark.parametrize("centres", [0, 65, 20_000])
def test_a_stack_of_too_many_models_is_refused_before_any_is_tried(centres):
    one = find(honest(ct.IFCA(clusters=2)), "train")
    stack = decode(one.message.shared, one.site.types)[0]
    many = tree_map(lambda v: v[:1].expand(centres, *v.shape[1:]).clone(), stack)
    began = time.monotonic()
    one.refuses(one.changed(shared=many), "a stack of")
    assert time.monotonic() - began < 1


def test_empty_tensors_do_not_count_as_many_models():
    """They take no bytes, however many there are."""
    one = find(honest(ct.IFCA(clusters=2)), "train")
    one.refuses(one.changed(shared={"other": torch.zeros(10**9, 0)}), "empty")


def test_too_many_tensors_are_refused():
    one = find(honest(ct.IFCA(clusters=2), limits=Limits(leaves=100)), "train")
    one.refuses(one.changed(shared=(torch.zeros(1),) * 101), "more than 100 tensors")


@pytest.mark.parametrize("depth", [40, 300, 10_000])
def test_a_nest_that_is_too_deep_is_refused(depth):
    one = find(honest(ct.IFCA(clusters=2)), "train")
    skeleton = '{"tuple": [' * depth + "0" + '], "type": null}' * depth
    raw = save({"0": torch.zeros(1)}, metadata={"head": f'{{"tree": {skeleton}}}'})
    one.refuses(one.message._replace(shared=raw), "too deeply|not a valid message", BadBytes)


def test_an_answer_that_takes_too_long_is_stopped():
    one = find(honest(ct.L2SGD(lr=0.5), limits=Limits(seconds=2)), "take_step")
    began = time.monotonic()
    static = {"n": 4, "mixings": 0, "steps": 10**9}
    one.refuses(one.changed(static=static), "TooLong")
    assert time.monotonic() - began < 10


def test_a_server_cannot_make_a_site_keep_any_number_of_states():
    one = find(honest(ct.Ditto()), "train")
    one.refuses(one.changed(keep=[Version(1, "train", i) for i in range(9)]), "more than 8")


# ------------------------------------------------------------------------------ private states
def test_a_personal_model_is_not_erased_by_a_call_for_newcomers():
    one = find(honest(ct.Ditto()), "train", round=2)
    assert tree_leaves(one.site.versions)
    one.refuses(one.changed(enrolled=False), "does not train", SiteRefusal)
    measure = find(honest(ct.Ditto()), "measure", round=2)
    measure.refuses(measure.changed(keeps_private=True), "in training", SiteRefusal)


def test_a_welcome_never_takes_a_site_back_to_its_beginning():
    asked = honest(ct.Ditto(), rounds=3)
    initial_payload = asked[0].message.initial_payload
    assert initial_payload is not None
    later = find(asked, "train", round=3)
    assert START not in later.site.versions
    from_start = later.changed(accepted=START)._replace(initial_payload=initial_payload)
    later.refuses(from_start, "has private states already", SiteRefusal)
    later.refuses(later.message._replace(initial_payload=initial_payload), "first message")


def test_a_welcome_that_is_sent_again_changes_nothing():
    """The answer to the first was lost: the server does not know that it arrived."""
    first = honest(ct.Ditto())[0]
    site = twin(first.site)
    assert site.answer(first.message) == first.reply
    states = dict(site.versions)
    other = tree_map(lambda v: v + 1, decode(first.message.initial_payload, site.types)[0])
    assert (
        site.answer(first.message._replace(initial_payload=encode(other, site.types)))
        == first.reply
    )
    assert all(site.versions[v] is states[v] for v in states)


def test_a_welcome_of_another_form_is_refused():
    first = honest(ct.Ditto())[0]
    types = first.site.types
    model = decode(first.message.initial_payload, types)[0]
    for other in ((), (model,), tree_map(lambda v: v[None], model)):
        first.refuses(
            first.message._replace(initial_payload=encode(other, types)), "structure of this method"
        )


def test_a_site_that_refused_its_first_message_is_sent_the_welcome_again():
    run = ready(ct.Ditto())
    site = run.engine.sites[0]
    answer, welcomes = site.answer, []

    def first_fails(message: Message) -> bytes:
        welcomes.append(message.initial_payload is not None)
        if len(welcomes) == 1:
            message = message._replace(shared=b"lost")
        return answer(message)

    site.answer = first_fails
    refused = [row["rejected"] for row in run.rounds()]
    assert refused[1:] == [[], []] and welcomes[:3] == [True, True, False]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_would_destroy_a_personal_model_are_refused(number):
    one = find(honest(ct.Ditto()), "train", round=2)
    spoilt = tree_map(lambda v: v * number, decode(one.message.shared, one.site.types)[0])
    one.refuses(one.changed(shared=spoilt), "not finite")


def test_the_state_that_an_answer_starts_from_is_always_kept():
    """The server may lose the answer, even one that asks to keep nothing."""
    one = find(honest(ct.Ditto()), "train", round=2)
    site = twin(one.site)
    site.answer(one.changed(keep=[]))
    assert Version(*one.head["accepted"]) in site.versions


def test_rounds_go_back_only_to_a_state_that_is_kept():
    asked = honest(ct.Ditto(), rounds=3)
    one = find(asked, "train", round=3)
    one.refuses(one.changed(accepted=START), "has no private state")
    one.refuses(one.changed(version=one.head["accepted"]), "accepted")
    measure = find(asked, "measure", round=3)
    measure.refuses(measure.changed(version=Version(1, "evaluate", 1)), "before")


# ------------------------------------------------------------------------------ functions
def test_a_server_cannot_place_a_model_of_its_choice_and_take_its_gradient():
    """With default settings all clients of PFL-TC start from one model, and nobody is placed."""
    asked = honest(ct.PFLTC(clusters=2))
    chosen = tree_map(
        lambda v: v * 0, decode(asked[0].message.initial_payload, asked[0].site.types)[0]
    )
    first, gather = asked[0], find(asked, "gather")
    place = {"path": "method", "name": "place", "per_client": chosen, "shared": (), "split": None}
    training = {"keeps_private": True, "version": Version(0, "train", 1)}
    first.refuses(first.changed(**place, **training), "does not use", SiteRefusal)
    training["version"] = Version(1, "train", 1)
    gather.refuses(gather.changed(**place, **training), "does not use", SiteRefusal)


def test_functions_of_the_start_run_in_round_0_and_the_others_later():
    asked = honest(ct.PFLTC(clusters=2, init="per_client"))
    place, gather = find(asked, "place", round=0), find(asked, "gather")
    message = place.changed(version=Version(1, "train", 1))
    place.refuses(message, "only in round 0", SiteRefusal)
    message = gather.changed(version=Version(0, "train", 5))
    gather.refuses(message, "not run in round 0", SiteRefusal)


def test_a_function_that_the_settings_do_not_use_is_refused():
    one = find(honest(ct.IFCA(clusters=2, init="random")), "train")
    for name in ("first_update", "train_sent", "choose"):
        one.refuses(one.changed(name=name), "does not use", SiteRefusal)


def test_a_round_after_the_last_is_refused():
    one = find(honest(ct.FedAvg()), "train", round=2)
    one.refuses(one.changed(version=Version(3, "train", 1)), "fewer rounds", SiteRefusal)


def test_a_phase_has_its_own_functions():
    asked = honest(ct.FedAvg())
    train, measure = find(asked, "train"), find(asked, "measure")
    evaluated = {"version": Version(1, "evaluate", 1), "keeps_private": False}
    train.refuses(train.changed(**evaluated), "another phase", SiteRefusal)
    trained = {"version": Version(1, "train", 2), "keeps_private": True}
    measure.refuses(measure.changed(**trained), "another phase", SiteRefusal)
    train.refuses(train.changed(split="test"), "no such split")
    measure.refuses(measure.changed(split="train"), "no such split")


@pytest.mark.parametrize("name", ["outputs", "personal_model", "losses", "model_sketch"])
def test_what_reports_ask_needs_the_permission_of_the_sites_owner(name):
    """By default only scores leave a site besides what the method sends."""
    one = find(honest(ct.Ditto()), "measure")
    model = decode(one.message.shared, one.site.types)[0]
    shared = (model, torch.zeros(2, 3)) if name == "outputs" else model
    question = one.changed(name=name, split=None, shared=shared)
    one.refuses(question, "does not permit", SiteRefusal)
    site = twin(one.site)
    site.policy = replace(site.policy, allowed=frozenset({name}))
    for _ in range(5):
        up, _ = decode(site.answer(question), site.types)
        assert tree_leaves(up)


@pytest.mark.parametrize("name, most", [("measure", 2 * 3), ("train", 1 * 3)])
def test_a_function_is_answered_a_few_times_in_a_round(name, most):
    """As often as it is declared, and again for a server that was restarted."""
    asked = honest(ct.FedAvg(), rounds=2)
    one = find(asked, name)
    site = twin(one.site)
    for _ in range(most):
        assert site.answer(one.message) == one.reply
    with pytest.raises(SiteRefusal, match="limit of answers"):
        site.answer(one.message)
    head = {"version": Version(2, one.head["version"][1], 1), "accepted": one.head["accepted"]}
    assert site.answer(one.changed(**head)), "the next round has its own budget"


VARIANTS = variants()
QUICK = ("ifca clusters=auto", "cfl-mgd", "cgpfl", "pfl-tc", "ditto")
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS if name not in QUICK]


@pytest.mark.parametrize("name", [*QUICK, *OTHERS])
def test_every_method_runs_on_sites_with_default_limits_and_nothing_to_spare(name):
    """What functions declare is enough for a whole run, newcomers and scores included."""
    options = {"rounds": 2, "engine": "wire", "eval_every": 1, "dtype": "float64"}
    method = VARIANTS[name]
    fed = rows_for(method, federation(unseen=2))
    run = prepare_run(method, fed, model_for(method), **options)
    rows = list(strict(run, limits=Limits(repeats=1)).rounds())
    assert not any(row["rejected"] for row in rows)
    assert all("accuracy" in row and "unseen_accuracy" in row for row in rows)


def test_a_refusal_is_no_answer_of_the_budget():
    one = find(honest(ct.FedAvg()), "train")
    site = twin(one.site)
    for _ in range(10):
        with pytest.raises(BadBytes):
            site.answer(one.message._replace(shared=b"lost"))
    assert site.answer(one.message) == one.reply


def test_a_site_that_refuses_is_one_refused_client_and_no_crash_of_the_server():
    run = ready(ct.FedAvg(), rounds=1)
    site = run.engine.sites[0]
    site.policy = replace(site.policy, rounds=0)
    rows = list(run.rounds())
    assert rows[1]["rejected"] == [run.roster.names[0]]


def test_a_site_with_few_rows_is_not_measured():
    run = prepare_run(ct.FedAvg(), federation(), "softmax", rounds=1, engine="wire")
    next(run.rounds())
    site = run.engine.sites[0]
    rows = int(site.parts["test"].mask.sum())
    site.policy = replace(site.policy, min_rows_to_report=rows + 1)
    row = run.step()
    assert run.roster.names[0] not in row["rejected"]  # it trains as before
    assert np.isnan(run.client_scores["accuracy"][0])
    assert not np.isnan(run.client_scores["accuracy"][1])


def test_the_wire_tells_its_sites_the_least_number_of_rows():
    run = ready(ct.FedAvg(), rounds=1)
    wire = Wire(run.task, federation(), run.root, min_rows_to_report=7)
    assert {site.policy.min_rows_to_report for site in wire.sites} == {7}


def test_decoded_tensors_are_freed_without_the_garbage_collector():
    """A node would otherwise hold the models of several rounds."""
    gc.collect()
    gc.disable()
    try:
        raw = encode({"a": (torch.ones(3), torch.zeros(2))}, {})
        decoded, _ = decode(raw, {})
        freed = weakref.ref(decoded["a"][0])
        del decoded
        assert freed() is None
    finally:
        gc.enable()
