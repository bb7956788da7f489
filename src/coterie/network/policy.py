"""What the owner of a site permits, whatever a server requests: flags of its node, or policy.toml.

The policy comes from the owner's own files and from this machine, never from a message. A server
can demand more, such as more sites in a sum, and never less: the site refuses any other request in
one sentence, which its log repeats, and nothing leaves.

    policy.toml

    require_secure = true
    min_other_sites = 4
    methods = ["ifca", "fedavg"]
    columns = ["age", "sex", "severity"]
    label = "outcome"
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from coterie.core.errors import CoterieError, unknown_name
from coterie.core.settings import check_settings, setting
from coterie.core.toml import read_toml
from coterie.core.values import convert_value

UNLIMITED = 2**53


@dataclass(frozen=True, kw_only=True)
class OwnerPolicy:
    """What a site's owner permits."""

    label: str | None = setting(None, "refuse runs with another label column; none: accept any")
    columns: tuple[str, ...] = setting((), "columns that runs may use; none: all")
    methods: tuple[str, ...] = setting((), "methods that may run; none: all of the library")
    functions: tuple[str, ...] = setting(
        (), "client functions that may run, with those of scores; none: all that a method uses"
    )
    require_secure: bool = setting(False, "refuse runs without secure sums", switch=True)
    min_other_sites: int = setting(
        2, "under secure sums: fewest other sites in a sum that this site takes part in", ge=1
    )
    max_epsilon_per_year: float | None = setting(
        None,
        "largest ε of all runs in a year; none: runs need no differential privacy. Runs over a "
        "network have none yet, so with a limit every run is refused",
        gt=0,
    )
    schema: str | None = setting(
        None,
        "a file with the schema of the tables: the site then does not describe its rows, and the "
        "server needs the same file; none: it describes them",
    )
    min_rows_to_report: int = setting(
        5, "send no statistics, texts or scores of fewer rows than this", ge=1
    )
    digits: int | None = setting(
        3, "significant digits of the statistics and scores that leave; none: all", ge=1, le=17
    )
    max_descriptions: int = setting(
        20, "different questions about the table that are answered per day", ge=0
    )
    max_runs: int = setting(20, "new runs per day", ge=0)
    max_scores: int = setting(200, "models that are scored on the site's rows per day", ge=0)
    max_scores_per_table: int = setting(
        1000, "models that are scored on one version of the table, over all runs", ge=0
    )
    max_requests: int = setting(100_000, "requests that are answered per day", ge=1)
    max_sites: int = setting(1000, "refuse runs with more sites", ge=1)
    max_parameters: int = setting(200_000_000, "refuse models with more parameters", ge=1)
    exact: int | None = setting(
        None,
        "for comparisons with `coterie run` on your own data: split the rows by this seed, and "
        "neither round nor limit what is sent; none: protect the rows",
    )

    def __post_init__(self) -> None:
        if not self.methods and not self.functions:
            return
        from coterie.engines.evaluate import Evaluation  # loads torch
        from coterie.methods.registry import methods

        known = methods()
        for name in self.methods:
            if name not in known:
                raise unknown_name("method in the owner's policy:", name, known)
        functions = sorted(
            name
            for cls in (Evaluation, *known.values())
            for name in dir(cls)
            if hasattr(getattr(cls, name), "declaration")
        )
        for name in self.functions:
            if name not in functions:
                raise unknown_name("function in the owner's policy:", name, set(functions))

    def effective(self) -> OwnerPolicy:
        """Return the limits that apply: with `exact`, none on statistics, scores and requests."""
        if self.exact is None:
            return self
        return replace(
            self,
            min_other_sites=1,
            min_rows_to_report=1,
            digits=None,
            max_descriptions=UNLIMITED,
            max_runs=UNLIMITED,
            max_scores=UNLIMITED,
            max_scores_per_table=UNLIMITED,
            max_requests=UNLIMITED,
        )


@dataclass(frozen=True, kw_only=True)
class PolicyFlags(OwnerPolicy):
    """The flags of commands that read an owner's policy."""

    policy: str | None = setting(
        None, "a TOML file with the owner's policy: the keys are these flags, such as label"
    )


def policy_of(flags: PolicyFlags) -> OwnerPolicy:
    """Return the owner's policy: its file, and flags that the file does not contradict.

    Raises:
        CoterieError: The file cannot be read, or a flag contradicts it.
    """
    given = {f.name: getattr(flags, f.name) for f in fields(OwnerPolicy)}
    if flags.policy is None:
        return OwnerPolicy(**given)
    values = read_policy_file(Path(flags.policy))
    defaults = {f.name: f.default for f in fields(OwnerPolicy)}
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        if name == "exact" and value is not None:
            raise CoterieError(f"{flag} lifts the limits of {flags.policy}", "use one of the two")
        if name in values and value not in (defaults[name], values[name]):
            raise CoterieError(
                f"{flag} contradicts {name} in {flags.policy}", "the policy holds: omit the flag"
            )
    return OwnerPolicy(**given | values)


def read_policy_file(file: Path) -> dict[str, Any]:
    """Read policy.toml.

    Returns:
        The fields of `OwnerPolicy` that it sets. A schema file is relative to its folder.

    Raises:
        CoterieError: It is not valid TOML, or a key or a value is wrong.
    """
    kinds = get_type_hints(OwnerPolicy)
    known = [f.name for f in fields(OwnerPolicy) if f.name != "exact"]
    values: dict[str, Any] = {}
    for key, value in read_toml(file, "policy").items():
        name = key.replace("-", "_")
        if name not in known:
            raise unknown_name(f"key in {file}:", key, known)
        if name in values:
            raise CoterieError(f"{name} occurs twice in {file}", "remove one")
        values[name] = convert_value(value, kinds[name], f"{name} in {file}")
    try:
        check_settings(OwnerPolicy(**values))
    except CoterieError as e:
        raise CoterieError(f"{file} cannot be used: {e}") from e
    if values.get("schema") is not None:
        values["schema"] = str(file.parent / values["schema"])
    return values
