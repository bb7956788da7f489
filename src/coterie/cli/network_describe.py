"""`coterie network describe`: what a site would send under its owner's policy, before it does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from coterie.cli.flags import read_flags
from coterie.cli.network_config import check_config_name, read_network_run
from coterie.core.declarations import describe_uploads, secure_obstacle
from coterie.core.errors import SiteRefusal
from coterie.core.settings import setting
from coterie.core.version import __version__
from coterie.data.coarsening import coarsen_description
from coterie.data.frames import SiteTable
from coterie.data.merging import merge
from coterie.engines.site import SCORES
from coterie.network.handshake import RunSpec, copy_options, make_roster
from coterie.network.local_table import FailureLog, LocalTable
from coterie.network.owner import Disclosure
from coterie.network.packets import DataTerms, Hello, RunTerms, SiteDescription
from coterie.network.policy import OwnerPolicy, PolicyFlags, policy_of
from coterie.runs.options import Options
from coterie.runs.start import create_task, model_name
from coterie.runs.step_sizes import can_fit_step_sizes

WHEN = {"start": "in round 0", "later": "from round 1 on", "any": "in every round"}
TITLES = {
    "plain": "Without secure sums",
    "secure": "With secure sums",
    "dp": "With differential privacy",
}
LIMITS = ("max_descriptions", "max_runs", "max_scores", "max_scores_per_table", "max_requests")


@dataclass(frozen=True, kw_only=True)
class DescribeFlags(PolicyFlags):
    """The flags of `coterie network describe`: those of the node that limit what leaves."""

    data: str = setting(..., "the site's table")
    json: bool = setting(False, "print one JSON document", switch=True)


def describe(names: list[str], argv: list[str]) -> int:
    """`coterie network describe CONFIG --data FILE`"""
    about = (
        "Show what a site would send under its owner's policy: before the first round, with a\n"
        "random split, and in rounds and evaluations, individually or only in sums over sites,\n"
        "without and with secure sums. Nothing is sent."
    )
    flags = read_flags("coterie network describe CONFIG", DescribeFlags, about, argv)
    _, spec, _ = read_network_run(check_config_name("describe", names), None)
    shown = preview(spec, policy_of(flags), Path(flags.data))
    if flags.json:
        print(json.dumps(shown, indent=1, ensure_ascii=False))
    else:
        print("\n".join(as_sentences(shown, spec)))
    return 0


def preview(spec: RunSpec, policy: OwnerPolicy, file: Path) -> dict[str, Any]:
    """Return what would leave the site, as plain data.

    Args:
        spec: The run.
        policy: The owner's policy.
        file: The site's table.

    Raises:
        CoterieError: The table does not fit the run.
    """
    owner = policy.effective()
    site = file.stem
    min_rows = max(owner.min_rows_to_report, spec.data.min_rows_to_report)
    options = replace(spec.data, min_rows_to_report=min_rows)
    table = SiteTable(site, file, options, owner.columns)
    rows = {name: int(n[0]) for name, n in table.index.roster.rows._asdict().items()}
    local = LocalTable(site, file, owner, Disclosure(file.parent, site, owner), FailureLog(site))
    if local.schema is None:
        description = coarsen_description(
            table.describe(),
            table.count_classes(),
            min_rows=owner.min_rows_to_report,
            digits=owner.digits,
            knows_label=owner.label is not None,
        )
        schema = merge({site: description}, options.min_category_count, columns=options.columns)
    else:
        description, schema = {}, local.schema
    roster = make_roster([site], {site: SiteDescription(description, rows)}, schema)
    task, _ = create_task(roster, model_name(spec.model, roster), spec.options)
    fits_steps = can_fit_step_sizes(spec.method, task, roster, spec.options)
    return {
        "site": site,
        "rows": rows,
        "description": description,
        "curvature": local.schema is None and fits_steps,
        "model": sum(p.numel() for p in task.module.parameters()),
        "modes": {
            "plain": describe_mode(local, spec, has_secure=False),
            "secure": describe_mode(local, spec, has_secure=True),
            "dp": {"refused": "runs over a network have none yet"},
        },
        "policy": {f.name: getattr(policy, f.name) for f in fields(OwnerPolicy)},
    }


def describe_mode(local: LocalTable, spec: RunSpec, has_secure: bool) -> dict[str, Any]:
    """Return what leaves in rounds with or without secure sums, or why the run is refused."""
    options = replace(spec.options, secure=has_secure)
    if not has_secure:
        options = replace(options, secure_min=Options().secure_min)
    obstacle = secure_obstacle(spec.method) if has_secure else None
    if obstacle is not None:
        return {"refused": obstacle}
    hello = Hello(
        coterie=__version__,
        data=copy_options(DataTerms, spec.data),
        run=copy_options(RunTerms, options),
        method=spec.method.name,
        has_schema=local.schema is not None,
    )
    try:
        local.check_owner(hello)
        local.check_functions(spec.method, has_secure)
    except SiteRefusal as e:
        return {"refused": str(e)}
    functions = local.owner.functions
    return {
        "refused": None,
        "uploads": describe_uploads(spec.method, secure=has_secure),
        "scores": not functions or not set(functions).isdisjoint(SCORES),
        "min_sites": options.secure_min if has_secure else 1,
    }


# ------------------------------------------------------------------------------ sentences
def as_sentences(shown: Mapping[str, Any], spec: RunSpec) -> Iterator[str]:
    """Yield what would leave, in lines for the owner of the site."""
    policy = shown["policy"]
    rows = shown["rows"]
    yield f"What would leave the site {shown['site']}. Nothing is sent now."
    yield ""
    yield "Before the first round, to the server, under the site's name:"
    counts = [f"{number} {part}" for part, number in rows.items() if number]
    yield f"  its numbers of rows: {', '.join(counts)}"
    if shown["description"]:
        yield from describe_statistics(shown["description"], policy)
    else:
        yield f"  no statistics of its columns: the schema is written in {policy['schema']}"
    if shown["curvature"]:
        yield f"  the curvature of its loss: 1 number of {policy['digits'] or 'all'} digits"
    for name, mode in shown["modes"].items():
        yield ""
        yield from describe_rounds(name, mode, shown, spec)
    yield ""
    yield "The owner's limits, over all runs:"
    for limit in LIMITS:
        setting_of = next(f for f in fields(OwnerPolicy) if f.name == limit)
        yield f"  {limit} {policy[limit]}: {setting_of.metadata['help']}"


def describe_statistics(description: Mapping[str, Any], policy: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line per column."""
    fewest = policy["min_rows_to_report"]
    for name, column in description["columns"].items():
        if "categories" in column:
            texts = [f"{text} {count}" for text, count in column["categories"].items()]
            what = ", ".join(texts) or "no text"
            yield f"  {name}, text: {what} (texts of fewer than {fewest} rows are withheld)"
        elif column.get("count"):
            deviation = (column["squares"] / column["count"]) ** 0.5
            quantiles = len(column["quantiles"])
            line = (
                f"  {name}, {column['kind']}: mean {column['mean']:.6g}, standard deviation "
                f"{deviation:.6g} of {column['count']} rows"
            )
            yield line + (f", {quantiles} quantiles" if quantiles > 1 else "")
        else:
            yield f"  {name}, {column['kind']}: no statistics, too few rows"
        if column["missing"]:
            yield f"    {column['missing']} missing cells"
    label = description["label"]
    if label["classes"]:
        yield f"  {label['name']}, the label: the classes {', '.join(label['classes'])}"
    elif label.get("count"):
        yield f"  {label['name']}, the label: mean {label['mean']:.6g} of {label['count']} rows"
    else:
        yield f"  {label['name']}, the label: too few rows of each class to name any"


def describe_rounds(
    name: str, mode: Mapping[str, Any], shown: Mapping[str, Any], spec: RunSpec
) -> Iterator[str]:
    """Yield what leaves in rounds and evaluations in one mode."""
    chosen = "as in the config file"
    if name != ("secure" if spec.options.secure else "plain"):
        chosen = "not chosen"
    title = TITLES[name]
    if mode["refused"]:
        yield f"{title} ({chosen}): refused, nothing leaves: {mode['refused']}."
        return
    if name == "secure":
        yield (
            f"{title} ({chosen}): each upload is masked. The server learns sums over at least "
            f"{mode['min_sites']} sites,"
        )
        yield "how many sites chose each group, and who took part:"
    else:
        yield f"{title} ({chosen}): the server sees each upload with the name of the site:"
    for function, sent in mode["uploads"].items():
        yield f"  {function}(), {WHEN[sent['rounds']]}: values ({sent['values']})"
        yield f"    weight: {sent['weight']}"
        for report, what in sent["reports"].items():
            yield f"    report {report}: {what}"
    yield f"  a model has {shown['model']} numbers with this site's columns"
    if mode["scores"]:
        how = "only in sums over sites" if name == "secure" else "individually"
        yield f"  at evaluations: errors summed over its test rows and a histogram: {how}"
    else:
        yield "  at evaluations: nothing, its owner does not permit scores"
