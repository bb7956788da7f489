"""`coterie check`: run the contract suite on a method."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from coterie.checks import CHECKS, Contract
from coterie.cli.flags import FlagValues, Parser, flags_of
from coterie.cli.method_flags import find_methods, make_method, method_flags
from coterie.core.errors import CoterieError, unknown_name
from coterie.core.settings import setting
from coterie.methods import registry

DEFAULT_MODEL = "mlp:12"


@dataclass(frozen=True, kw_only=True)
class CheckFlags:
    """The flags of `coterie check`."""

    model: str = setting(
        DEFAULT_MODEL, "a model for digits of 8 × 8 pixels, by name or file.py:Net"
    )
    only: str | None = setting(None, "the name of one check, such as engines_agree")


def check(names: list[str], argv: list[str]) -> int:
    """`coterie check METHOD`"""
    about = (
        "Check that a method fulfils the contract: engines agree, runs resume to the bit, bad\n"
        "uploads harm no one. It runs on small data. The method's hyper-parameters are flags, too."
    )
    if not names and argv[:1] in (["--help"], ["-h"]):
        Parser("coterie check METHOD", flags_of(CheckFlags), about).print_help()
        return 0
    classes = find_methods("check", names)
    flags = [*method_flags(classes, is_one_method=True), *flags_of(CheckFlags)]
    parser = Parser(" ".join(["coterie", "check", *names]), flags, about)
    given = FlagValues(parser.flags, parser.parse(argv))
    asked = given.make(CheckFlags)
    only = None if asked.only is None else asked.only.replace("-", "_")
    if only is not None and only not in CHECKS:
        raise unknown_name("check", only, CHECKS)
    (cls,) = classes.values()
    method = make_method(cls, given, {}, is_one_method=True)
    contract = Contract(method, registry.model(asked.model))
    logging.getLogger("coterie").setLevel(logging.ERROR)  # the checks provoke warnings
    failed = 0
    asked_for = list(CHECKS) if only is None else [only]
    for name in asked_for:
        sentence = find_fault(contract, name)
        print(f"{'FAIL' if sentence else 'ok':<6}{name.replace('_', ' ')}", flush=True)
        if sentence:
            failed += 1
            print(f"      {sentence}")
    if failed:
        raise CoterieError(
            f"{cls.name} fails {failed} of {len(asked_for)} checks: see the contract in "
            "docs/algorithm.md."
        )
    return 0


def find_fault(contract: Contract, name: str) -> str:
    """Run a check and return what is wrong in a sentence; "" if the method passes."""
    try:
        contract.run(name)
    except CoterieError as e:
        return str(e)
    except Exception as e:  # of the method's own code
        at = e.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        where = "" if at is None else f" ({at.tb_frame.f_code.co_filename}:{at.tb_lineno})"
        reason = (str(e).strip().splitlines() or [""])[0]
        return f"{type(e).__name__}: {reason}{where}"
    return ""
