"""Breaks the methods on purpose, one line at a time, and sees whether their own tests notice.

    python tests/mutations.py                  all of them, some seconds each
    python tests/mutations.py apfl kmeans      some
    python tests/mutations.py --write apfl     and put what came out into docs/decisions/mutations.md
    python tests/mutations.py --write --missing    only those that this document does not call caught

Each break is tried on a copy of src. It is caught only if a test fails by name; a crash of Python's own kind (a name
that does not exist, say), a time-out or a file that cannot be collected proves nothing and is called unclear.
"""

from __future__ import annotations

import builtins
import importlib
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "decisions" / "mutations.md"
ODD = ("survived", "unclear", "untried")  # what is not caught


class Break(NamedTuple):
    group: str  # a method, or a file that several share
    tests: str  # the files under tests/ that ought to notice
    file: str  # under src/coterie
    old: str  # occurs once in the file
    new: str


def breaks(group: str, tests: str, file: str, *pairs: tuple[str, str]) -> list[Break]:
    return [Break(group, tests, file, old, new) for old, new in pairs]


# ---------------------------------------------------------------------------------------------- the list
BREAKS: list[Break] = [
    *breaks(
        "fedavg",
        "baselines/test_fedavg.py",
        "baselines/fedavg.py",
        ("if self.weighted else", "if not self.weighted else"),
        ("return data.size[None]", "return data.size[None] ** 2"),
        ("data.batches(self)", "Repeat(data.all, self.local_steps)"),
        ('{"model": w}', '{"model": pick(model, 0)}'),
        ('sums.mean("model", empty=model)', 'sums.totals["model"]'),
        ("empty=model", "empty={k: 0 * v for k, v in model.items()}"),
        ('stream="train"', 'stream="other"'),
        ("task.inits(seed, 1)", "task.inits(0, 1)"),
    ),
    *breaks(
        "fedavg-ft",
        "baselines/test_fedavg.py",
        "baselines/fedavg.py",
        (
            "descend(task, pick(shared, 0), Repeat(data.all, self.finetune), self)",
            "pick(shared, 0)",
        ),
        ("Repeat(data.all, self.finetune)", "Repeat(data.all, 1)"),
        ("Repeat(data.all, self.finetune)", "Repeat(data.all, self.local_steps)"),
        ("Repeat(data.all, self.finetune)", "Repeat(data.part(0, 2), self.finetune)"),
        ("Repeat(data.all, self.finetune), self", "Repeat(data.all, self.finetune), FedAvg()"),
        ("Repeat(data.all, self.finetune)", "Repeat(data.sample(3, 0), self.finetune)"),
    ),
    *breaks(
        "fedprox",
        "baselines/test_fedprox.py",
        "baselines/fedprox.py",
        ("pull=self.mu", "pull=0.0"),
        ("pull=self.mu", "pull=-self.mu"),
        ("pull=self.mu", "pull=2 * self.mu"),
        ("towards=received", "towards={k: 0 * v for k, v in received.items()}"),
        ("data.batches(self)", "[data.all]"),
        ("self.weight(data)", "data.size[None]"),
        ('{"model": w}', '{"model": received}'),
    ),
    *breaks(
        "local",
        "baselines/test_local_only.py",
        "baselines/local_only.py",
        ("norm(minus(new, model))}), new", "norm(minus(new, model))}), model"),
        (
            "descend(task, model, data.batches(self), self)",
            "descend(task, model, [data.all], self)",
        ),
        ('stream="train"', 'stream="other"'),
        ('ask(self.train, stream="train")', 'ask(self.train, ask.everyone, stream="train")'),
        ("return private", "return shared"),
        ("(), descend(task, start, data.batches(self), self)", "(), start"),
        ("return model, model", "return model, task.init(seed + 1)"),
    ),
    *breaks(
        "ditto",
        "baselines/test_ditto.py",
        "baselines/ditto.py",
        ("pull=self.lam", "pull=0.0"),
        ("pull=self.lam", "pull=-self.lam"),
        ("pull=self.lam", "pull=2 * self.lam"),
        ("towards=w)", "towards=v)"),
        ("self.personal(task, received, v, data)", "self.personal(task, w, v, data)"),
        ("self.personal(task, received, v, data)", "self.personal(task, received, received, data)"),
        ("self.personal(task, received, v, data)", "v"),
        ("self.personal(task, received, v, data)", "w"),
        ('{"model": w}', '{"model": self.personal(task, received, v, data)}'),
        ("descend(task, received,", "descend(task, v,"),
        (
            "descend(task, v, data.batches(self)",
            "descend(task, v, data._replace(key=data.key + 1).batches(self)",
        ),
        ("self.weight(data)", "data.size[None]"),
        ("return private", "return pick(shared, 0)"),
        ("self.personal(task, w, w, data)", "w"),
    ),
    *breaks(
        "apfl",
        "baselines/test_apfl.py",
        "baselines/apfl.py",
        ("mix(self.alpha, self.w, self.v)", "mix(self.alpha, self.v, self.w)"),
        ("me._replace(w=pick(model, 0))", "me"),
        ("me._replace(w=pick(model, 0))", "me._replace(w=pick(model, 0), v=pick(model, 0))"),
        ("gradient(task, me.blend(), batch, self)", "gradient(task, me.v, batch, self)"),
        ("axpy(-self.lr, gradient(task, me.w, batch, self), me.w)", "axpy(-self.lr, g, me.w)"),
        ("axpy(-self.lr * me.alpha, g, me.v)", "axpy(-self.lr, g, me.v)"),
        ("axpy(-self.lr * me.alpha, g, me.v)", "axpy(self.lr * me.alpha, g, me.v)"),
        ("axpy(-self.lr * me.alpha, g, me.v)", "axpy(-self.lr * me.alpha, g, me.w)"),
        ("axpy(-self.lr * me.alpha, g, me.v)", "me.v"),
        ("moved = me.alpha - self.lr", "moved = me.alpha + self.lr"),
        ("minus(me.v, me.w)", "minus(v, w)"),
        ("moved.clamp(0, 1)", "moved"),
        ("if self.adaptive else", "if not self.adaptive else"),
        ('{"model": me.w}', '{"model": me.blend()}'),
        (
            '"alpha": me.alpha}), me',
            '"alpha": me.alpha}), me._replace(alpha=me.alpha * 0 + self.alpha)',
        ),
        ("return private.blend()", "return private.v"),
        ("return private.blend()", "return private._replace(w=pick(shared, 0)).blend()"),
        (
            "self.trained(task, self.enroll(task, pick(shared, 0), data), data)",
            "self.enroll(task, pick(shared, 0), data)",
        ),
        ("weighted: bool = setting(False", "weighted: bool = setting(True"),
        ("self.weight(data)", "data.size[None] * 0 + 1"),
        ("float(a.mean())", "float(a.median())"),
    ),
    *breaks(
        "perfedavg",
        "baselines/test_perfedavg.py",
        "baselines/perfedavg.py",
        ("self.adapted(task, w, next(firsts))", "w"),
        ("next(firsts)", "batch"),
        ("next(thirds)", "batch"),
        ("for k in (1, 2)", "for k in (2, 1)"),
        ("for k in (1, 2)", "for k in (1, 1)"),
        ("axpy(-self.inner, self.hessian", "axpy(self.inner, self.hessian"),
        ("axpy(-self.inner, self.hessian", "axpy(-self.lr, self.hessian"),
        ('if self.order == "hf":', 'if self.order == "fo":'),
        ("axpy(-self.lr, g, w)", "axpy(-self.inner, g, w)"),
        (
            "axpy(-self.inner, gradient(task, w, batch, self), w)",
            "axpy(self.inner, gradient(task, w, batch, self), w)",
        ),
        ("(2 * self.delta)", "self.delta"),
        ("(self.delta, -self.delta)", "(self.delta, 0.0)"),
        ("axpy(d, g, w)", "axpy(d, w, g)"),
        ("self.adapted(task, pick(shared, 0), data.all)", "pick(shared, 0)"),
        (
            "self.adapted(task, pick(shared, 0), data.all)",
            "self.adapted(task, pick(shared, 0), data.sample(2, 0))",
        ),
        ("weighted: bool = setting(False", "weighted: bool = setting(True"),
        ("self.weight(data)", "data.size[None] * 0 + 1"),
    ),
    *breaks(
        "l2sgd",
        "baselines/test_l2sgd.py",
        "baselines/l2sgd.py",
        ("if mixings:", "if False:"),
        ("1 - self.lr * self.lam / (n * self.p)", "1 + self.lr * self.lam / (n * self.p)"),
        ("1 - self.lr * self.lam / (n * self.p)", "1 - self.lr * self.lam / self.p"),
        ("1 - self.lr * self.lam / (n * self.p)", "1 - self.lr * self.lam / n"),
        (" ** mixings", ""),
        ("mix(1 - left, x, pick(mean, 0))", "mix(left, x, pick(mean, 0))"),
        ("self.lr / (n * (1 - self.p))", "self.lr / n"),
        ("self.lr / (n * (1 - self.p))", "self.lr / (n * self.p)"),
        ("data.sample(size, done + t)", "data.sample(size, t)"),
        ("sgd(task, new, batches, how)", "sgd(task, x, batches, how)"),
        ("minus(new, x)", "minus(x, new)"),
        ("{}), new", "{}), x"),
        ("axpy(1 / n, sums", "axpy(1 / max(len(sums.ids), 1), sums"),
        ("< self.p)", "> self.p)"),
        ("shared=(mean, ", "shared=(state.mean, "),
        ("found.append((1, 0))", "found.append((0, 0))"),
        ("(mixings + 1, 0) if mixes", "(1, 0) if mixes"),
        ("return private", "return pick(shared.mean, 0)"),
        ("axpy(lam, minus(x, mean)", "axpy(-lam, minus(x, mean)"),
        ("self.lam if self.p else 0.0", "self.lam"),
        ("self.lr / shared.clients.to(task.dtype)", "self.lr"),
        ("walk(mean, data.batches(self), expected)", "mean"),
    ),
    *breaks(
        "fedbcd",
        "baselines/test_fedbcd.py",
        "baselines/fedbcd.py",
        ("pull=2 * self.rho", "pull=0.0"),
        ("pull=2 * self.rho", "pull=self.rho"),
        ("pull=2 * self.rho", "pull=-2 * self.rho"),
        ("towards=pick(z, 0)", "towards=x"),
        ("self.solved(task, x, z, self.first", "self.solved(task, pick(z, 0), z, self.first"),
        ("minus(new, x)", "minus(x, new)"),
        ("{}), new", "{}), x"),
        ("{}), new", "{}), pick(z, 0)"),
        ("t < steps", "t <= steps"),
        ("t < steps", "t < self.local_steps"),
        ("self.local_steps + 1, (n,)", "max(self.local_steps, 2), (n,)"),
        ("own=steps[ask.participants]", "own=drawn[ask.participants]"),
        ("axpy(1 / n, sums", "axpy(1 / len(sums.ids), sums"),
        ("mix(self.mixing, state.z, mean)", "mix(self.mixing, mean, state.z)"),
        ("mix(self.mixing, state.z, mean), mean)", "mix(self.mixing, state.z, mean), state.mean)"),
        ("torch.ones_like(data.size)[None]", "data.size[None]"),
        ("return private", "return pick(shared, 0)"),
        ("self.solved(task, pick(shared, 0), shared, data.batches(self))", "pick(shared, 0)"),
    ),
    *breaks(
        "fedem",
        "baselines/test_fedem.py",
        "baselines/fedem.py",
        ("pi.log() - losses", "-losses"),
        ("pi.log() - losses", "pi - losses"),
        ("pi.log() - losses", "pi.log() + losses"),
        ("torch.where(data.all.mask[:, None] > 0, q, 0)", "q"),
        ("new.clamp(min=self.floor)", "new.clamp(min=0)"),
        ("return q, new / new.sum()", "return q, new"),
        ("q, pi = self.explain", "q, _ = self.explain"),
        (
            "_, pi = self.explain(task, models, pi, data)",
            "_, pi = self.explain(task, models, self.enroll(task, (), data), data)",
        ),
        ("data.weighted(q[:, m])", "data"),
        ("data.weighted(q[:, m])", "data.weighted(q[:, 0])"),
        ("descend(task, w, data", "descend(task, models[0], data"),
        ('data.size[None], {"share"', 'data.size[None] * 0 + 1, {"share"'),
        ('{"share": pi}), pi', '{"share": pi}), pi * 0 + 1 / self.clusters'),
        ("device=data.all.mask.device)", "device=data.all.mask.device).cumsum(0)"),
        (
            "state.shares.index_copy(0, got.ids,",
            "state.shares.index_copy(0, torch.arange(len(got.ids)),",
        ),
        (
            "Mixed(task.inits(seed, self.clusters),",
            "Mixed({k: 0 * v + v[:1] for k, v in task.inits(seed, self.clusters).items()},",
        ),
        ('stream="train"', 'stream="other"'),
        ("outputs @ pi", "outputs.mean(-1)"),
        ("outputs.log_softmax(-2) + pi.log()", "outputs.log_softmax(-2)"),
        ("outputs.log_softmax(-2) + pi.log()", "outputs + pi.log()"),
        ("range(self.join_steps)", "range(1)"),
    ),
    *breaks(
        "pfedme",
        "baselines/test_pfedme.py",
        "baselines/pfedme.py",
        (
            'mix(self.beta, model, sums.mean("model", empty=model))',
            'mix(self.beta, sums.mean("model", empty=model), model)',
        ),
        (
            'mix(self.beta, model, sums.mean("model", empty=model))',
            'sums.mean("model", empty=model)',
        ),
        ('{"model": w}, one[None]', '{"model": w}, data.size[None]'),
        ('{"model": w}', '{"model": theta}'),
        ("Personal(theta, self.kept(w), one)", "Personal(w, self.kept(w), one)"),
        ("Personal(theta, self.kept(w), one)", "Personal(private.model, self.kept(w), one)"),
        ("Personal(theta, self.kept(w), one)", "Personal(received, self.kept(w), one)"),
        ("Personal(theta, self.kept(w), one)", "Personal(theta, self.kept(theta), one)"),
        ("Personal(theta, self.kept(w), one)", "Personal(theta, self.kept(w), 0 * one)"),
        ("where(private.asked > 0, mine, w)", "mine"),
        ('private.local if self.evaluate == "local" else private.model', "private.model"),
        ('if self.evaluate == "global"', "if False"),
        (
            "Personal(theta, self.kept(w), torch.ones_like(data.size))",
            "Personal(w, self.kept(w), torch.ones_like(data.size))",
        ),
        ('stream="train"', 'stream="other"'),
    ),
    *breaks(
        "pfedme",
        "baselines/test_pfedme.py",
        "algorithms/envelope.py",
        ("return self.lr * self.lam", "return self.lr"),
        ("lr=self.inner_lr", "lr=self.lr"),
        ("data.sample(self.batch, r)", "data.sample(self.batch, 0)"),
        ("how, self.lam, w)", "how, 0.0, w)"),
        ("how, self.lam, w)", "how, self.lam, theta)"),
        ("how, self.lam, w)", "how, -self.lam, w)"),
        ("how, self.lam, w)", "how, 2 * self.lam, w)"),
        ("descend(task, theta, Repeat", "descend(task, w, Repeat"),
        ("Repeat(batch, self.inner)", "Repeat(batch, 1)"),
        ("mix(self.fraction(), w, theta)", "mix(self.fraction(), theta, w)"),
        ("mix(self.fraction(), w, theta)", "mix(-self.fraction(), w, theta)"),
        ("received if self.restart else", "received if not self.restart else"),
        ("where(private.asked > 0, private.model, received)", "private.model"),
    ),
    *breaks(
        "cfl",
        "baselines/test_cfl.py",
        "baselines/cfl.py",
        ("label.index_fill(0, seats[side], k)", "label.index_fill(0, side.nonzero()[:, 0], k)"),
        (
            "group.index_copy(0, got.ids, label)",
            "group.index_copy(0, torch.arange(len(label)), label)",
        ),
        ("unit = update / update.norm(dim=1, keepdim=True).clamp(min=1e-12)", "unit = update"),
        ("(1 - cosine)", "(1 + cosine)"),
        ("linkage=linkage)", 'linkage="complete")'),
        ("cosine[side][:, ~side].max()", "cosine[side][:, ~side].min()"),
        ("cosine[side][:, ~side].max()", "cosine[side][:, side].max()"),
        ("(n @ update / n.sum())", "update.mean(0)"),
        ("< self.eps1 * longest", "> self.eps1 * longest"),
        ("< self.eps1 * longest", "< self.eps1"),
        ("> self.eps2 * longest", "< self.eps2 * longest"),
        ("> self.eps2 * longest", "> self.eps1 * longest"),
        ("update.norm(dim=1).max() > self.eps2", "update.norm(dim=1).min() > self.eps2"),
        ("((1 - cross) / 2) ** 0.5", "((1 + cross) / 2) ** 0.5"),
        ("((1 - cross) / 2) ** 0.5", "((1 - cross) / 2)"),
        ("ask.round >= self.wait", "ask.round > self.wait"),
        ("flatten(models) - flatten(pick_rows(at.centres, label))", "flatten(models)"),
        ("flatten(pick_rows(at.centres, label))", "flatten(at.centres)[:1]"),
        (
            "state.longest if state.longest > 0 else update.norm(dim=1).max()",
            "update.norm(dim=1).max()",
        ),
        ("torch.where(group == c, -1, group)", "group"),
        ("k += 1", "k += 0"),
        ("at.group[ids])", "at.group[ids] * 0)"),
        (
            "group_mean(models, label, got.weight.sum(1),",
            "group_mean(models, label, got.weight.sum(1) * 0 + 1,",
        ),
        ("group_mean(models, label, got", "group_mean(models, at.group[got.ids], got"),
        ("len(update) < 2", "len(update) < 3"),
        ('stream="train"', 'stream="other"'),
    ),
    *breaks(
        "flhc",
        "baselines/test_flhc.py",
        "baselines/flhc.py",
        ("ask.round == self.warm + 1", "ask.round == self.warm"),
        ("ask.round == self.warm + 1", "ask.round == self.warm + 2"),
        ("flatten(models) - flatten(state.centres)", "flatten(models)"),
        ("got.weight[:, 0]", "got.weight[:, 0] * 0 + 1"),
        ("Grouped(centres, torch", "Grouped(repeated(pick(state.centres, 0), k), torch"),
        ("torch.full_like(state.group, -1).index_copy", "state.group.index_copy"),
        ("index_copy(0, got.ids, labels)", "index_copy(0, torch.arange(len(labels)), labels)"),
        ('"metric": self.metric', '"metric": "euclidean"'),
        ('"linkage": self.linkage', '"linkage": "average"'),
        ('"distance_threshold": self.distance', '"distance_threshold": 2 * self.distance'),
        ("[order[label] for label in found]", "found"),
        ('stream="train"', 'stream="other"'),
    ),
    *breaks(
        "grouped",
        "algorithms/test_one_shot.py baselines/test_flhc.py baselines/test_cfl.py",
        "algorithms/grouped.py",
        ("member * data.size", "member"),
        ("descend(task, centre, data.batches(self), self)", "centre"),
        ("state.group[ids])", "state.group[ids] * 0)"),
        ('{"group": j, "loss"', '{"group": losses.argmax(), "loss"'),
        ("torch.where(group < 0, j, group)", "j"),
        ("torch.where(group < 0, j, group)", "group"),
        ("return least_loss(task, unstack(centres), data.all)[0], ()", "return 0 * data.home, ()"),
        ("ask.participants[state.group[ask.participants] < 0]", "ask.participants[:0]"),
        ("index_copy(0, got.ids,", "index_copy(0, torch.arange(len(got.ids)),"),
        ('sums.mean("model", empty=state.centres)', 'sums.totals["model"]'),
        ("empty=state.centres)", "empty={k: 0 * v for k, v in state.centres.items()})"),
        ('stream="train"', 'stream="other"'),
    ),
    *breaks(
        "fedsoft",
        "algorithms/test_fedsoft.py",
        "algorithms/fedsoft.py",
        ("argmin_finite(losses)", "argmin_finite(-losses)"),
        ("torch.where(data.all.mask[:, None] > 0, best, 0)", "best"),
        ("(n / data.size).clamp(min=self.floor)", "n / data.size"),
        ("(n / data.size).clamp(min=self.floor)", "n.clamp(min=self.floor)"),
        ("u / u.sum(), c)", "torch.ones_like(u) / len(u), c)"),
        ("u / u.sum(), c)", "u, c)"),
        ("self.pull * u.sum()", "self.pull"),
        ("self.pull * u.sum()", "0 * u.sum()"),
        ("self.pull * u.sum()", "-self.pull * u.sum()"),
        ("self.pull * u.sum(), me.model,", "self.pull * u.sum(), towards,"),
        ("me.solver if self.keep_solver else", "me.solver if False else"),
        ("kept, batches, self, pull, towards)", "kept, batches, self, 0 * pull, towards)"),
        ("self.momentum, pull, towards)", "self.momentum, 0 * pull, towards)"),
        (
            "sgd(task, w, batches, self, pull, towards)",
            "sgd(task, w, batches, self, 0 * pull, towards)",
        ),
        ("self.momentum, pull", "0.0, pull"),
        ("weight, {}), new", "weight, {}), me"),
        ("weight, {}), new", "(weight > 0).to(weight), {}), new"),
        ("self.clusters, start=1)", "self.clusters)"),
        (
            "centres = task.inits(seed, self.clusters, start=1)",
            "centres = {k: 0 * v + v[:1] for k, v in task.inits(seed, self.clusters, start=1).items()}",
        ),
        ("state.importance * state.size[:, None]", "state.importance"),
        (
            "un / torch.where(un.sum(0) > 0, un.sum(0), 1)",
            "un / un.sum(1, keepdim=True).clamp(min=1e-300)",
        ),
        ("self.draw(v[ask.participants], ask)", "self.draw(v[: len(ask.participants)], ask)"),
        ("own=(state.importance[ids], weight)", "own=(state.importance[: len(ids)], weight)"),
        ('stream="train"', 'stream="other"'),
        ("(ask.round - 1) % self.every", "ask.round % self.every"),
        ("ask.everyone if due", "ask.participants if due"),
        ("ask.participants[state.size[ask.participants] == 0]", "ask.participants[:0]"),
        (
            "state.importance.index_copy(0, got.ids,",
            "state.importance.index_copy(0, torch.arange(len(got.ids)),",
        ),
        ('got.ids, got.report["size"])', 'got.ids, torch.ones_like(got.report["size"]))'),
        ("self.select if self.replace else min(self.select, there)", "min(self.select, there)"),
        ("torch.multinomial(p, k, self.replace,", "torch.multinomial(p, k, True,"),
        ("torch.multinomial(p, k,", "torch.multinomial(torch.ones_like(p), k,"),
        ("times[:, s] +=", "times[:, 0] +="),
        ("max(0.0, 1 - k / n) ** s", "max(0.0, 1 - k / n)"),
        ("(1 - 1 / n) ** (k * s)", "(1 - 1 / n) ** k"),
        ("return me.model", "return {k: v[0] for k, v in shared[0].items()}"),
        (
            "self.enroll(task, start, data), self",
            "self.enroll(task, {k: v[0] for k, v in centres.items()}, data), self",
        ),
        (
            "self.solve(task, centres, u, me, Repeat",
            "self.solve(task, centres, torch.ones_like(u), me, Repeat",
        ),
        ("Repeat(data.all, self.join_steps)", "data.batches(self)"),
        ("return u / torch.where", "return u * torch.where"),
    ),
    *breaks(
        "pfl-tc",
        "algorithms/test_threshold.py",
        "algorithms/threshold.py",
        (
            "mix(a, me.momentum, self.local_update(task, me.model, data))",
            "mix(a, self.local_update(task, me.model, data), me.momentum)",
        ),
        (
            "torch.where(me.turns == 0, torch.ones_like(data.size), self.alpha)",
            "torch.full_like(data.size, self.alpha)",
        ),
        ("Member(me.model, m, me.turns + 1)", "Member(me.model, me.momentum, me.turns + 1)"),
        ("Member(me.model, m, me.turns + 1)", "Member(me.model, m, me.turns)"),
        ("next(each(data.batches(self)))", "data.all"),
        (
            "minus(x, descend(task, x, data.batches(self), self))",
            "minus(descend(task, x, data.batches(self), self), x)",
        ),
        ("scale(1 / self.lr, minus", "scale(1.0, minus"),
        (
            "Threshold(self.threshold, self.quantile, self.moves, self.sample)",
            "Threshold(self.threshold, None, self.moves, self.sample)",
        ),
        (
            "Threshold(self.threshold, self.quantile, self.moves, self.sample)",
            "Threshold(self.threshold, self.quantile, 50, self.sample)",
        ),
        (
            "Threshold(self.threshold, self.quantile, self.moves, self.sample)",
            "Threshold(self.threshold, self.quantile, self.moves, None)",
        ),
        (
            "balls.share @ m",
            "torch.nn.functional.normalize((balls.labels == torch.arange(len(balls.share))[:, None]).double(), 1) @ m",
        ),
        ("own=Rows(v, balls.labels)", "own=Rows(v, balls.labels.flip(0))"),
        ("matched(-overlap", "matched(overlap"),
        ("overlap(state.group[got.ids],", "overlap(state.group[: len(got.ids)],"),
        ("z.index_add(0, to.to(z.device)", "z.index_add(0, torch.arange(len(to))"),
        ("alpha=-self.lr) for k", "alpha=self.lr) for k"),
        ("to[balls.labels])", "balls.labels)"),
        (
            "state.group.index_copy(0, got.ids,",
            "state.group.index_copy(0, torch.arange(len(got.ids)),",
        ),
        ("axpy(-self.lr, v, me.model))  # x_i ← x_i − η v_k", "axpy(self.lr, v, me.model))"),
        ("me._replace(model=axpy(-self.lr, v, me.model))  # x_i ← x_i − η v_k", "me"),
        (
            "own=ask.task.inits(ask.seed, len(ask.everyone), start=1)",
            "own=Rows(ask.task.inits(ask.seed, 2, start=1), ask.everyone * 0)",
        ),
        ("pick(centres, least_loss(task, unstack(centres), data.all)[0])", "pick(centres, 0)"),
    ),
    *breaks(
        "pdl-tc",
        "algorithms/test_threshold.py",
        "algorithms/threshold.py",
        ("axpy(-self.lr, v, me.model))  # x_i ← x_i − η v_i", "axpy(self.lr, v, me.model))"),
        ("me._replace(model=axpy(-self.lr, v, me.model))  # x_i ← x_i − η v_i", "me"),
        ('torch.einsum("j,j...->...", share, m)', "m.mean(0)"),
        ("own=balls.share.to(m)", "own=balls.share.T.to(m)"),
        ("own=balls.share.to(m)", "own=torch.eye(len(m), dtype=m.dtype)"),
        ("own_balls(m, self.clusters,", "own_balls(m, 1,"),
        ("descend(task, start, data.batches(self), self)", "start"),
        ("balls.inside.sum(1)", "balls.inside.sum(1) - 1"),
        ("return private.model", "return private.momentum"),
    ),
    *breaks(
        "threshold clustering",
        "clustering/test_threshold_clusters.py",
        "clustering/threshold.py",
        ("member / member.sum(1, keepdim=True), how", "member / len(x), how"),
        (
            "torch.eye(len(x), dtype=x.dtype), how",
            "torch.ones(len(x), len(x), dtype=x.dtype) / len(x), how",
        ),
        ("(far <= radius[:, None]) & seen", "(far >= radius[:, None]) & seen"),
        ("(far <= radius[:, None]) & seen", "(far <= radius[:, None])"),
        ("near - near.sum(1, keepdim=True) * share", "near + near.sum(1, keepdim=True) * share"),
        ("near - near.sum(1, keepdim=True) * share", "near - share"),
        (" / seen.sum()", " / near.sum(1, keepdim=True).clamp(min=1)"),
        (" / seen.sum()", " / n"),
        ("share = share + move", "share = share - move"),
        ("[how.sample :]", "[: how.sample]"),
        ("bool(seen.all()) and", "True and"),
        ("1e-6 * radius", "radius"),
        ("rounds < how.rounds", "rounds <= how.rounds"),
        ("inside.sum(0) == 1", "inside.sum(0) >= 1"),
        ("torch.where(inside.sum(0) == 1, inside.int().argmax(0), far.argmin(0))", "far.argmin(0)"),
        ("0.99 * far", "far"),
        ("1 / (2 * k) if", "1 / k if"),
        ("other / 2 if how.rule", "other if how.rule"),
        ("if alone else", "if not alone else"),
        ("first**2 / left", "first**2 / (n - left)"),
        ("gain.argmax(1", "gain.argmin(1"),
        ("row.gather(1, cut + 1))", "row.gather(1, cut))"),
        (".minimum(other[:, None]).sort", ".sort"),
        ("row if bool(other.isfinite().all()) else row[:, :-1]", "row"),
        ("wide.argmax(1", "wide.argmin(1"),
        ("+ row[:, 2:].gather(1, at)", "+ row[:, 1:-1].gather(1, at)"),
        ("torch.where(row[:, 1] < other, middle, other / 2)", "middle"),
        ("(2 * size / len(x) * rho", "(size / len(x) * rho"),
        ("(2 * size / len(x) * rho", "(2 * size / size * rho"),
        ("torch.cdist(v, x).amin(0)", "torch.cdist(v, x).amax(0)"),
        (".square().mean().sqrt()", ".mean()"),
        ("_apart(v).min()).sqrt()", "_apart(v).min())"),
    ),
    *breaks(
        "kmeans",
        "clustering/test_kmeans.py",
        "clustering/kmeans.py",
        ("if init is not None", "if False"),
        ("n_init=starts", "n_init=1"),
        ("torch.cdist(x, centres).argmin(1)", "torch.cdist(x, centres).argmax(1)"),
        (
            'compute_mode="donot_use_mm_for_euclid_dist").argmin(1)',
            'compute_mode="donot_use_mm_for_euclid_dist").argmax(1)',
        ),
        ("centres: Tensor, most: int = 300", "centres: Tensor, most: int = 1"),
        ('{"": centres})[""]', '{"": 0 * centres})[""]'),
        ("((x - centres[labels]) ** 2).sum()", "(x - centres[labels]).norm(dim=1).sum()"),
        ("values.clamp(min=0).sqrt()", "values.clamp(min=0)"),
        ("* weight[:, None]", "* (0 * weight[:, None] + 1)"),
        (" / torch.where(m > 0, m, 1), old)", ", old)"),
        ("torch.where(m > 0, m, 1), old)", "torch.where(m > 0, m, 1), 0 * old)"),
        ("[:most].sort()", "[: most // 2].sort()"),
        ("float(fit.inertia_)", "float(fit.inertia_) / len(x)"),
    ),
    *breaks(
        "matching",
        "clustering/test_matching.py",
        "clustering/matching.py",
        ("linear_sum_assignment(cost.", "linear_sum_assignment(-cost."),
        (
            "to[torch.from_numpy(group)] = torch.from_numpy(centre)",
            "to[torch.from_numpy(centre).clamp(max=len(to) - 1)] = torch.from_numpy(group)",
        ),
        (
            "(before[before >= 0], now[before >= 0])",
            "(before[before >= 0].flip(0), now[before >= 0])",
        ),
        ("(before[before >= 0], now[before >= 0])", "(before, now)"),
        ("accumulate=True", "accumulate=False"),
    ),
    *breaks(
        "sketch",
        "clustering/test_sketch.py",
        "clustering/sketch.py",
        ("scramble(at + seed)", "scramble(at)"),
        ("v * sign", "v"),
        ("& 1) * 2 - 1", "& 1)"),
        ("view(-1, bins).sum(0)", "view(bins, -1).sum(1)"),
        ("scramble(at + seed)", "scramble(at % bins + seed)"),
    ),
    *breaks(
        "ifca",
        "algorithms/test_ifca.py",
        "algorithms/ifca.py",
        ("data.part(2 * pair, 2 * self.resample) if self.resample else data.all", "data.all"),
        (
            "data.part(2 * pair, 2 * self.resample) if self.resample",
            "data.part(2 * pair + 1, 2 * self.resample) if self.resample",
        ),
        (
            "self.local_update(task, pick(centres, j), data, pair)",
            "self.local_update(task, pick(centres, 0), data, pair)",
        ),
        ('report = {"cluster": j,', 'report = {"cluster": losses.argmax(),'),
        ("one_hot(j, count(centres), task.dtype)", "torch.softmax(-losses, -1)"),
        ("losses + self.l2 / 2 * torch", "losses + self.l2 * torch"),
        ("losses + self.l2 / 2 * torch", "losses - self.l2 / 2 * torch"),
        ("j = argmin_finite(losses)", "j = j + 0"),
        ("if self.l2_in_choice", "if self.l2"),
        ("data.part(2 * pair + 1, 2 * self.resample)", "data.part(2 * pair, 2 * self.resample)"),
        ("next(each(batches))", "data.all"),
        ("return descend(task, w, batches, how)", "return w"),
        ("if alike else task.inits(seed, k)", "if True else task.inits(seed, k)"),
        (
            "self.train_within(state.centres, settled, group, ask)",
            "self.train_within(state.centres, settled, group * 0, ask)",
        ),
        ('stream: str = "train"', 'stream: str = "other"'),
        (
            'sums.mean("apart", empty=centres)',
            'sums.mean("apart", empty={k: 0 * v for k, v in centres.items()})',
        ),
        (
            'sums.mass["common"].sum().clamp(min=1) if self.divide == "participants" else clients',
            "clients",
        ),
        (
            'sums.mass["common"].sum().clamp(min=1) if self.divide == "participants" else clients',
            'sums.mass["apart"].max().clamp(min=1)',
        ),
        ("axpy(-self.lr / m,", "axpy(self.lr / m,"),
        ("axpy(-self.lr / m,", "axpy(-self.lr,"),
        ("pick(centres, self.estimate(task, centres, data.all)[0])", "pick(centres, 0)"),
        (
            "pick(centres, self.estimate(task, centres, data.all)[0])",
            "pick(centres, self.estimate(task, centres, data.sample(1, 0))[0])",
        ),
        ("v[:1] if self.shared_by_all(k) else v for", "v for"),
        ("s = s * data.size if self.weighted else s", "s = s * data.size"),
        ("s = s * data.size if self.weighted else s", "s = s"),
        ("int(state.still) >= self.patience", "int(state.still) > self.patience"),
        ("ask.round % self.recheck != 0", "True"),
        (
            "state.group[ask.participants] >= 0) & quiet",
            "state.group[ask.participants] >= -1) & quiet",
        ),
        (
            "now = state.group.index_copy(0, sums.ids,",
            "now = state.group.index_copy(0, torch.arange(len(sums.ids)),",
        ),
        ("state.still + int(len(sums.ids) > 0) if same", "state.still if same"),
        ("Rows((centres, eye), group[ids])", "Rows((centres, eye), group[: len(ids)])"),
        ("(ask.round - 1) % self.resample", "0 * self.resample"),
        ('static=static, stream="start")', 'static=static, stream="other")'),
        (
            "group = state.group.index_copy(0, got.ids, found.labels)",
            "group = state.group.index_copy(0, got.ids, found.labels.flip(0))",
        ),
        ("minus(value, model), self.sketch_size", "value, self.sketch_size"),
        ("F.normalize(short, dim=-1, eps=1e-12)", "short"),
        ("loss < min(losses", "loss > max(losses"),
        ('stream=f"trial {n}"', 'stream="trial"'),
        ('float(got.report["loss"].mean())', 'float(got.report["loss"].min())'),
        ("int(len(sums.ids) > 0)", "1"),
        ("self.ask_all(centres, ask, stream=", "self.ask_all(state.centres, ask, stream="),
        ("if least > most:", "if least < most:"),
        ("0.7 / k", "0.1 / k"),
    ),
    *breaks(
        "ifca",
        "algorithms/test_auto.py",
        "algorithms/ifca.py",
        ("group, ask, start=True)", "group, ask)"),
        ("self.at_start() if start else self", "self"),
        ("local_steps=5 * self.local_steps", "local_steps=self.local_steps"),
        ("local_steps=self.start_steps, local_epochs=None", "local_steps=self.start_steps"),
        ("else 5 * self.local_epochs", "else self.local_epochs"),
        ("ask, self.auto_by)", 'ask, "bound")'),
    ),
    *breaks(
        "cfl-mgd",
        "algorithms/test_cfl_mgd.py",
        "algorithms/cfl_mgd.py",
        ("pick(centres, j), pick(momentum, j)", "pick(centres, j), pick(momentum, 0)"),
        ("pick(centres, j), pick(momentum, j)", "pick(centres, j), zeros(pick(momentum, j))"),
        ("pick(centres, j), pick(momentum, j)", "pick(centres, 0), pick(momentum, j)"),
        ("data.part(2 * pair, 2 * self.resample) if self.resample else data.all", "data.all"),
        ("data.part(2 * pair + 1, parts)", "data.part(2 * pair, parts)"),
        ("s = s * data.size if self.weighted else s", "s = s * data.size"),
        ("s = s * data.size if self.weighted else s", "s = s"),
        ("axpy(self.beta, u, gradient(", "axpy(-self.beta, u, gradient("),
        ("axpy(self.beta, u, gradient(", "axpy(0.0, u, gradient("),
        ("next(each(batches))", "data.all"),
        ("batches, self, self.beta)", "batches, self, self.momentum)"),
        ("batches, self, self.beta)", "batches, self, 0.0)"),
        ("w, u = heavy_ball", "w, _ = heavy_ball"),
        ('{"momentum": u, "model": w}', '{"momentum": u, "model": axpy(-self.lr, u, w)}'),
        ("group[settled])", "group[settled] * 0)"),
        (
            "Rows((state.centres, state.momentum, eye)",
            "Rows((state.centres, zeros(state.momentum), eye)",
        ),
        ('"stream": "train"', '"stream": "other"'),
        (
            'sums.mean("momentum", empty=state.momentum)',
            'sums.mean("momentum", empty=zeros(state.momentum))',
        ),
        (
            "Moving(self.moved(state, sums), momentum,",
            "Moving(self.moved(state, sums), state.momentum,",
        ),
        (
            "Moving(self.moved(state, sums), momentum,",
            "Moving(self.moved(state, sums), {k: 0 * v + v.mean(0) for k, v in momentum.items()},",
        ),
        (
            'sums.mean("model", empty=state.centres)',
            'sums.mean("model", empty=zeros(state.centres))',
        ),
        (
            'if self.divide == "participants" else len(state.group)',
            'if self.divide == "clients" else len(state.group)',
        ),
        ("axpy(-self.lr / m,", "axpy(self.lr / m,"),
        ("axpy(-self.lr / m,", "axpy(-self.lr,"),
    ),
    *breaks(
        "one-shot",
        "algorithms/test_one_shot.py",
        "algorithms/one_shot.py",
        ("Repeat(data.all, self.solve_steps)", "data.batches(self)"),
        ("Repeat(data.all, self.solve_steps)", "Repeat(data.part(0, 2), self.solve_steps)"),
        ("torch.ones_like(data.size)[None]", "data.size[None]"),
        ("ask(self.solve, ask.everyone,", "ask(self.solve, ask.participants,"),
        ("kmeans(coordinates(models)", "kmeans(coordinates(directions)"),
        (
            "state.group.index_copy(0, got.ids, found.labels)",
            "state.group.index_copy(0, torch.arange(len(got.ids)), found.labels)",
        ),
        ("state.group.index_copy(0, got.ids, found.labels)", "state.group"),
        (
            "return Grouped(centres, state",
            "return Grouped(repeated(pick(state.centres, 0), k), state",
        ),
        ("return self.within(state, ask)", "return state"),
    ),
    *breaks(
        "one-shot",
        "algorithms/test_auto.py",
        "algorithms/one_shot.py",
        ("moves = models - flatten(state.centres)[:1]", "moves = models"),
        (
            "how_many(self.clusters, coordinates(directions)",
            "how_many(self.clusters, coordinates(models)",
        ),
    ),
    *breaks(
        "cgpfl",
        "algorithms/test_cgpfl.py",
        "algorithms/cgpfl.py",
        ("self.theta_start(received, private)", "received"),
        ('{"model": omega}', '{"model": theta}'),
        ("Personal(theta, {}, torch", "Personal(omega, {}, torch"),
        ("Personal(theta, {}, torch", "Personal(private.model, {}, torch"),
        ("Personal(theta, {}, torch", "Personal(received, {}, torch"),
        ("super().fraction() if self.pull is None else self.pull", "super().fraction()"),
        ("repeated(model, k)", "task.inits(seed, k)"),
        ("torch.ones(len(labels)), empty", 'got.report["rows"], empty'),
        ("mix(self.alpha, centres, mean)", "mix(self.alpha, mean, centres)"),
        ("mix(self.alpha, centres, mean)", "mean"),
        ("group_mean(omega, labels,", "group_mean(omega, labels.flip(0),"),
        (
            "state.group.index_copy(0, got.ids, labels)",
            "state.group.index_copy(0, torch.arange(len(got.ids)), labels)",
        ),
        ("group = state.group[ask.participants]", "group = state.group[: len(ask.participants)]"),
        ("torch.where(group < 0, k, group)", "group.clamp(min=0)"),
        ("torch.where(group < 0, k, group)", "group * 0"),
        ('reduce="stack", stream="train"', 'reduce="stack", stream="other"'),
        ("old, new = points[:k], points[k:]", "old, new = points[-k:], points[k:]"),
        ("old = old[distances(flat, flat).argmin(1)]", "old = old + 0"),
        ("init=None if anew else old", "init=None"),
        ("init=None if anew else old", "init=old"),
        ("distances(old, found.centres) ** 2", "-(distances(old, found.centres) ** 2)"),
        ("matched(cost + order)[found.labels]", "found.labels"),
        ("matched(cost + order)", "matched(cost - order)"),
        ("both = before >= 0", "both = before >= -1"),
        ("(a.T @ b) / b.sum(0)", "(b.T @ a) / b.sum(0)"),
        ("(a.T @ b) / b.sum(0)", "(a.T @ b) / a.sum(0)"),
        (
            "where(private.asked > 0, private.model, self.best(task, centres, data))",
            "private.model",
        ),
        (
            "where(private.asked > 0, private.model, self.best(task, centres, data))",
            "self.best(task, centres, data)",
        ),
        ("least_loss(task, unstack(centres), data.all)[0]", "0"),
        (
            "Personal(self.solve(task, near, near, data)[1]",
            "Personal(self.solve(task, near, near, data)[0]",
        ),
    ),
    *breaks(
        "cgpfl-heur",
        "algorithms/test_cgpfl.py",
        "algorithms/cgpfl.py",
        ("bool((state.group < 0).all())", "True"),
        ("Bound(rows, omega", "Bound(torch.ones(len(rows)), omega"),
        ("omega.shape[1], self.mu)", 'omega.shape[1], "auto")'),
    ),
    *breaks(
        "cgpfl-heur",
        "algorithms/test_cgpfl.py",
        "clustering/choose.py",
        (
            "(share * ((x - found.centres[found.labels]) ** 2).sum(1))",
            "(((x - found.centres[found.labels]) ** 2).sum(1) / n)",
        ),
        (
            "(share * ((x - found.centres[found.labels]) ** 2).sum(1))",
            "(share * (x - found.centres[found.labels]).norm(dim=1))",
        ),
        ("(math.sqrt(k) - 1) / (math.sqrt(n) - 1)", "(k - 1) / (n - 1)"),
        ("+ c / costs[1] for", "- c / costs[1] for"),
        ("math.sqrt(k * complexity) + how.mu * c", "math.sqrt(k * complexity) + c"),
        ("math.sqrt(k * complexity) + how.mu * c", "k * math.sqrt(complexity) + how.mu * c"),
        ("how.size / m * few_rows", "m / how.size * few_rows"),
        ("math.log(math.e * m / d)", "math.log(1 + math.e * m / d)"),
        ("Choice(1 + min(range(top), key=curve", "Choice(1 + max(range(top), key=curve"),
    ),
    *breaks(
        "choose",
        "clustering/test_choose.py",
        "clustering/choose.py",
        ('choose_clusters(points, rng, "gap").clusters == 1', "False"),
        ("min(len(x) // 2, 20 if", "min(len(x) - 1, 20 if"),
        ("u[:, :MOST] * s[:MOST]", "u[:, :MOST]"),
        ("[NO_STRUCTURE, *(score", "[-1.0, *(score"),
        ("1 + max(range(top)", "1 + min(range(top)"),
        ("low + (high - low) * torch.rand(", "torch.rand("),
        ("shapeless.mean(0) - log_costs(x)", "log_costs(x) - shapeless.mean(0)"),
        ("gap[best] - 2 * error[best]", "gap[best] - 200 * error[best]"),
        ("gap[best] - 2 * error[best]", "gap[best]"),
        ("int(gap.argmax())", "int(gap.argmin())"),
        ("max(curve) - 0.02", "max(curve) - 1"),
        ("order[len(x) // 2 :]", "order[: (len(x) + 1) // 2]"),
        ("[AGREE, *(agreement", "[0.0, *(agreement"),
    ),
    *breaks(
        "answers",
        "test_answers.py cli/test_cli_answers.py",
        "answers.py",
        ("losses[k] if math.isfinite(losses[k]) else math.inf", "losses[k]"),
        ("losses[order[1]] - losses[order[0]]", "losses[order[0]] - losses[order[1]]"),
        ("Assignment(order[0], losses", "Assignment(order[-1], losses"),
        ("if not bool(x.isfinite().all()):", "if False:"),
        ("if run.fed.blank:", "if False:"),
        ("outputs.softmax(-1) if probabilities", "outputs if probabilities"),
        ("y = found if y is None else y", "y = y"),
        ("if not bool(y.isfinite().all()):", "if False:"),
        ("run.homes[i])", "run.homes[0])"),
        (
            "mine = lambda v: tree_map(lambda t: t[v.index[i]], v.table)",
            "mine = lambda v: tree_map(lambda t: t[0], v.table)",
        ),
        (
            "private = tree_map(lambda v: v[i], run.engine.snapshot())",
            "private = tree_map(lambda v: v[0], run.engine.snapshot())",
        ),
        (
            "own, private = method.join(run.task, shared, data)",
            "own, private = method.use(run.state)[1], ()",
        ),
    ),
    *breaks(
        "answers",
        "test_answers.py cli/test_cli_answers.py",
        "exported.py",
        ('if hashlib.sha256(data).hexdigest() != facts.get("sha256"):', "if False:"),
        ("if not re.fullmatch(NAME, name):", "if False:"),
        ("if g == k]", "if g != k]"),
        ("if name.casefold() not in taken", "if True"),
        ("type(method).join in known and", "True or"),
        (
            "found[name] = (client, method.model(",
            "found[name] = (client, method.centres(run.state) or method.model(",
        ),
    ),
    *breaks(
        "answers",
        "test_answers.py",
        "portable.py",
        ("self.module.load_state_dict(params, strict=False)", "pass"),
        ("return out.softmax(-1)", "return out"),
        ('dynamic_shapes=({0: torch.export.Dim("rows")},),', ""),
    ),
    *breaks(
        "answers",
        "test_answers.py cli/test_cli_answers.py engine/test_checkpoint.py",
        "result.py",
        ("if fed.fingerprint() != config", "if False and config"),
        ("if answers_only and run.round < 0:", "if False:"),
        ("return Result(reopen(path, model=model, answers_only=True))", "raise"),
    ),
    *breaks(
        "tables",
        "data/test_schema.py data/test_tables.py data/test_csv_folder.py",
        "data/schema.py",
        (
            'mean = math.fsum(d["count"] * d["mean"] for d in parts) / rows',
            'mean = math.fsum(d["mean"] for d in parts) / len(parts)',
        ),
        (' + [d["count"] * (d["mean"] - mean) ** 2 for d in parts]', ""),
        ("taken[missing] = len(slot)", "taken[missing] = 0"),
        ("slot.get(text, len(slot))", "slot.get(text, 0)"),
        ('self.median if fill == "median" else self.mean', "self.mean"),
        ("(values - self.mean) / self.deviation if", "values / self.deviation if"),
        ("fill = fill or self.fill", "pass"),
        ("if len(counts) == counts.total() > 10:", "if False:"),
        ("if len(counts) > MOST_CATEGORIES:", "if False:"),
        ("if len(found) > 1:", "if False:"),
        ("self.label, *self.ignored}", "self.label}"),
        ("seen = column.iloc[rows]", "seen = column"),
        ('all(d["ids"] for d in parts) and', "False and"),
    ),
    *breaks(
        "tables",
        "data/test_schema.py data/test_tables.py data/test_csv_folder.py",
        "data/tables.py",
        ('if sign in header and "," not in header', "if sign in header"),
        ("if 2 * strange.sum() > present.sum() and", "if strange.any() and"),
        ("| (np.abs(values) > HUGE)", ""),
        ("name = normal(file.stem)", "name = file.stem"),
        ("for name in header if name.strip() in text", "for name in ()"),
        (
            "str(int(v)) if isinstance(v, float) and v.is_integer() else normal(str(v))",
            "normal(str(v))",
        ),
        ("if header.count(name) > 1:", "if False:"),
    ),
    *breaks(
        "tables",
        "data/test_schema.py data/test_tables.py data/test_csv_folder.py",
        "data/folder.py",
        ("rows = index.train.client(i)[0] if i < len(index) else ()", "rows = None"),
        ("np.sort(rows[cut:])", "np.sort(rows[:-cut])"),
        (
            '.argsort(kind="stable") for name, frame',
            '.argsort(kind="stable")[::-1] for name, frame',
        ),
        (
            "[np.flatnonzero(found == part) for found in words]",
            "[np.flatnonzero(found != part) for found in words]",
        ),
        ("for name, frame in tables.items() if fill is None else ():", "for name, frame in ():"),
    ),
    *breaks(
        "the folder of a run",
        "engine/test_checkpoint.py",
        "runs/folder.py",
        ("if i + 1 < len(lines):", "if False:"),
        ('not any((path / "checkpoints").glob("*"))', "True"),
        ('config["options"]["rounds"] = rounds', "pass"),
        ('if checksum(leaves) != head["crc"]:', "if False:"),
        (
            'sorted((self.path / "checkpoints").glob("*.safetensors"), reverse=True)',
            'sorted((self.path / "checkpoints").glob("*.safetensors"))',
        ),
        ('row["round"] <= until', "True"),
    ),
    *breaks(
        "natural clients",
        "data/test_natural.py",
        "data/natural.py",
        ("counts >= least", "counts > least"),
        ("< (samples or len(key))", "<= (samples or len(key))"),
        ("np.isin(client, chosen) & few", "np.isin(client, enough) & few"),
        ('rows = rows[key[rows].argsort(kind="stable")]', "pass"),
        ('client.argsort(kind="stable")', "np.arange(len(client))"),
    ),
    *breaks(
        "natural clients",
        "data/test_natural.py data/test_image_sets.py",
        "data/base.py",
        ("is_test == 1)", "is_test == 0)"),
        ("% 4 == 3)[member]", "% 4 == 3)[np.arange(len(member)) % len(whose)]"),
        (
            "signals[:, start[:, None] + np.arange(128)]",
            "signals[:, start[:, None] + np.arange(128)[::-1]]",
        ),
        ("np.diff(start[order]) < 128", "np.diff(start[order]) < 0"),
    ),
    *breaks(
        "Hugging Face data sets",
        "data/test_hub.py",
        "data/features.py",
        ("if test[0].features != rows.features:", "if False:"),
        ("np.arange(len(rows)) < size", "np.arange(len(rows)) <= size"),
        ("np.moveaxis(x, -1, 1) if last else x", "x"),
        ('x if mode == "L" else np.moveaxis(x, -1, 1)', "x"),
    ),
    *breaks(
        "Hugging Face data sets",
        "data/test_hub.py",
        "data/hub.py",
        (
            "by.dataset, clients = rows.shuffle(seed=seed, keep_in_memory=True), None",
            "by.dataset, clients = rows, None",
        ),
        ("place.HF_HUB_OFFLINE = True", "place.HF_HUB_OFFLINE = False"),
    ),
    *breaks(
        "what sets groups apart",
        "page/test_apart.py",
        "page/apart.py",
        ("size - errors * np.sqrt(squared_error)", "size"),
        ("t.isf(CHANCE / looks / 2, freedom)", "t.isf(CHANCE / looks / 2, 1000)"),
        ("if min(len(here.rows), len(there.rows)) < 2:", "if False:"),
        ("(m - n) / wide, error", "(n - m) / wide * 0, error"),
        ("here * there < 0 and", "False and"),
        ("column.shift + column.scale * v", "v"),
        ("label.more if r > 0 else label.less", "label.less if r > 0 else label.more"),
    ),
    *breaks(
        "what sets groups apart",
        "page/test_apart.py",
        "page/sums.py",
        ("away = z - z.mean(0)", "away = z"),
        ("(influence**2).sum(0) * (g / (g - 1) if g > 1 else 0)", "(influence**2).sum(0) * 0"),
        ("self.scatter + self.rows[:, None] * away**2", "self.scatter"),
        ("kinds = [1] if classes == 2", "kinds = [0] if classes == 2"),
    ),
]


# ---------------------------------------------------------------------------------------------- one trial
def trial(source: Path, tests: str, broken: Break | None = None) -> tuple[str, str]:
    """("caught", "survived" or "unclear"; the test that failed and why) for a fresh copy of the source."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        if broken:
            file = Path(folder) / "coterie" / broken.file
            text = file.read_text()
            assert text.count(broken.old) == 1, (
                f"{broken.old!r} occurs {text.count(broken.old)} times in {broken.file}"
            )
            file.write_text(text.replace(broken.old, broken.new))
        output = Path(folder) / "output"
        process = multiprocessing.get_context("fork").Process(
            target=run, args=(folder, tests.split(), output)
        )
        process.start()
        process.join(600)
        if process.is_alive():
            process.kill()
            process.join()
        return verdict(process.exitcode, output.read_text())


def run(folder: str, tests: list[str], output: Path) -> None:
    """In a process of its own, which has torch already but not coterie."""
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(ROOT)
    os.environ |= {"PYTHONPATH": folder, "COLUMNS": "400"}
    sys.path.insert(0, folder)
    import coterie

    assert Path(coterie.__file__).is_relative_to(folder), f"{coterie.__file__} is not in the copy"
    sys.exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *(f"tests/{t}" for t in tests)]))


def verdict(status: int | None, output: str) -> tuple[str, str]:
    if status == 0:
        return "survived", ""
    found = re.search(r"^(?:FAILED|ERROR) \S+?::(.+?)(?: - (.*))?$", output, re.M)
    if status != 1 or not found:
        return "unclear", output or f"exit status {status}"
    name, why = found[1], found[2] or ""
    kind = why.split(":")[0]
    crash = kind != "AssertionError" and hasattr(builtins, kind)
    return ("unclear" if crash else "caught"), f"{name}: {why}"


# ---------------------------------------------------------------------------------------------- the document
HEAD = """# Mutations

Every line below was broken on purpose, one at a time, in a copy of the source, and the method's own tests were run on
it: `python tests/mutations.py --write`. The last column names the first test that failed when the row was last tried.
"""


def row(b: Break) -> str:
    """The row of a break but for its last column."""
    old, new = (f"`{text}`".replace("|", r"\|") for text in (b.old, b.new or " "))
    return f"| {b.file} | {old} | {new} |"


def documented() -> dict[Break, str]:
    """The last column of every break's row."""
    lines = DOCUMENT.read_text().splitlines() if DOCUMENT.exists() else []
    rows = {
        b: next((x for x in lines if x.startswith(row(b))), f"{row(b)} untried |") for b in BREAKS
    }
    return {b: x.removeprefix(row(b)).strip(" |") for b, x in rows.items()}


def write(results: dict[Break, str]) -> None:
    """The breaks tried now, and the others as they were."""
    last = documented() | results
    odd = [f"{n} {word}" for word in ODD if (n := sum(r == word for r in last.values()))]
    caught = sum(r not in ODD for r in last.values())
    lines = [
        HEAD,
        ", ".join([f"{len(last)} breaks: {caught} caught", *(odd or ["none survived"])]) + ".",
    ]
    for group in dict.fromkeys(b.group for b in BREAKS):
        lines += [
            f"\n## {group}\n",
            "| file | line | broken into | caught by |",
            "| --- | --- | --- | --- |",
        ]
        lines += [f"{row(b)} {last[b]} |" for b in BREAKS if b.group == group]
    DOCUMENT.write_text("\n".join(lines) + "\n")


def main(words: list[str]) -> None:
    for slow in ("pandas", "sklearn.cluster", "torch._dynamo"):
        importlib.import_module(slow)  # once, for all the processes to come
    groups = [w for w in words if not w.startswith("--")]
    if unknown := set(groups) - {b.group for b in BREAKS}:
        sys.exit(
            f"no breaks are listed for {', '.join(sorted(unknown))}: give names that head a list in this file."
        )
    chosen = [b for b in BREAKS if not groups or b.group in groups]
    if "--missing" in words:
        known = documented()
        chosen = [b for b in chosen if known[b] in ODD]
    results: dict[Break, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(
            ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
        for tests in dict.fromkeys(b.tests for b in chosen):
            kind, why = trial(source, tests)
            if kind != "survived":
                sys.exit(f"{tests} is not green on the unbroken source: {why}")
        for b in chosen:
            kind, why = trial(source, b.tests, b)
            results[b] = why.split(": ")[0] if kind == "caught" else kind
            print(f"{kind:9}{b.group}: {b.old} → {b.new}\n         {why[-600:]}", flush=True)
            if "--write" in words:
                write(results)
    print(f"{len(results)} breaks, {sum(r not in ODD for r in results.values())} caught.")


if __name__ == "__main__":
    main(sys.argv[1:])
