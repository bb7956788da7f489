"""`coterie audit`: a lower bound of ε that an attack proves, beside the promised one."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from coterie.aggregation.canaries import Canaries, epsilon_lower_bound
from coterie.cli.flags import FlagValues, Parser, flags_of
from coterie.cli.run_flags import UserCode
from coterie.core.errors import CoterieError
from coterie.core.settings import setting
from coterie.privacy.ledger import PrivacyLedger
from coterie.runs.folder import RunFolder
from coterie.runs.load import RunCode, find_data, restore_options
from coterie.runs.run import Run
from coterie.runs.start import create_engine


@dataclass(frozen=True, kw_only=True)
class AuditFlags(UserCode):
    """The flags of `coterie audit`."""

    canaries: int = setting(200, "number of canary clients", ge=20)
    json: bool = setting(False, "print JSON", switch=True)


def audit(names: list[str], argv: list[str]) -> int:
    """`coterie audit RUN`"""
    about = (
        "Train the run again, without a folder, together with canary clients that send random\n"
        "updates of the largest norm. How well they can be recognised in the models proves a\n"
        "lower bound of ε, with 95 % confidence. It is below the promise unless noise is missing."
    )
    parser = Parser("coterie audit RUN", flags_of(AuditFlags), about)
    if argv[:1] in (["--help"], ["-h"]):
        parser.print_help()
        return 0
    if len(names) != 1:
        raise CoterieError("audit takes one run: give its folder.")
    flags = FlagValues(parser.flags, parser.parse(argv)).make(AuditFlags)
    run = reopen(names[0], flags)
    private = run.pipeline.private
    assert private is not None and run.ledger is not None
    private.canaries = Canaries(flags.canaries)
    run.train()
    dimension = private.canaries.moved.shape[1]
    bound = epsilon_lower_bound(private.canaries.cosines(), dimension, run.ledger.promise.delta)
    promised = run.ledger.epsilon()
    if flags.json:
        finite = promised if math.isfinite(promised) else None  # JSON has no infinity
        print(json.dumps({"lower_bound": bound, "promised": finite, "canaries": flags.canaries}))
    else:
        print(
            f"{flags.canaries} canaries prove ε ≥ {bound:.2f} with 95 % confidence; the ledger "
            f"promises ε ≤ {promised:.2f} at δ = {run.ledger.promise.delta:g}."
        )
    return 0 if bound <= promised else 1


def reopen(path: str, flags: AuditFlags) -> Run:
    """The run of a folder as it was before its first round, without the folder."""
    folder, config = RunFolder.open(path)
    options = restore_options(config)
    if options.dp != "clients":
        raise CoterieError(
            f"{path} was trained without client-level differential privacy: there is no promise to "
            "audit."
        )
    code = RunCode(path, config, None, flags.load_model(), flags.trust)
    fed = find_data(path, config, None, options)
    method, task = code.method(), code.task(fed.roster)
    engine = create_engine(method, task, fed, options, config.plan)
    run = Run(method, task, fed.roster, engine, options, model_name=config.model)
    run.use_ledger(PrivacyLedger(PrivacyLedger.read(folder.path, None).promise))
    return run
