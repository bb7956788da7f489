"""`coterie assign`, `coterie predict` and `coterie export`: what a finished run is for."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

from coterie.cli.flags import Flag, Parser, general_flags, typed
from coterie.cli.train import opened
from coterie.data.tables import read_npz, read_table
from coterie.engine.rounds import Run
from coterie.errors import CoterieError
from coterie.result import Result

FILL = Flag("fill", str | None, "mean or median for missing cells; none: as in training", None, {}, "flags")


def finished(words: list[str], need: int, usage: str) -> tuple[Result, list[Path]]:
    """The run, and the files named after it."""
    if len(words) != need:
        raise CoterieError(f"write {usage}.")
    return Result(opened(Path(words[0]), None)), [Path(word) for word in words[1:]]


def rows_of(result: Result, file: Path, given: dict[str, Any]) -> tuple[Any, Any]:
    """(x, y or None) of a table, encoded as in training, or of an npz file."""
    run: Run = result._run
    if file.suffix.lower() == ".npz":
        arrays = read_npz(file)
        return arrays["x"], arrays["y"]
    schema = run.fed.schema
    if schema is None:
        raise CoterieError(f"the data of {result.folder} are no tables, so {file} must be an .npz file with x and y.")
    fill = given.get("fill") or trained_with(run).get("fill")
    return schema.encode(read_table(file), fill, where=str(file))


def trained_with(run: Run) -> dict[str, Any]:
    """The options of the data set, as the run's folder has them."""
    assert run.folder is not None
    config = json.loads((run.folder.path / "config.json").read_text(encoding="utf-8"))
    return dict(config.get("origin", {}).get("data") or {})


def labelled(result: Result, file: Path, given: dict[str, Any]) -> tuple[Any, Any]:
    x, y = rows_of(result, file, given)
    if y is None:
        raise CoterieError(f"{file} has no column {result._run.fed.schema.label}: add the labels.")  # type: ignore[union-attr]
    return x, y


def assign(words: list[str], argv: list[str]) -> int:
    shown = [f._replace(group="flags") for f in general_flags() if f.key in ("json", "debug")]
    about = "The group whose model has the least loss on a new client's labelled rows, and by how much."
    given = Parser("coterie assign RUN FILE", [FILL, *shown], about).given(argv)
    result, (file,) = finished(words, 2, "coterie assign RUN FILE, such as coterie assign runs/mine new.csv")
    found = result.assign(*labelled(result, file, given))
    print(json.dumps(found._asdict()) if "json" in given else f"{file.stem}: {found}")
    return 0


def predict(words: list[str], argv: list[str]) -> int:
    flags = [
        Flag("client", str | None, "with the model of this client", None, {}, "flags"),
        Flag("cluster", int | None, "with the model of this group", None, {}, "flags"),
        Flag("support", str | None, "as a newcomer that has these labelled rows, a file", None, {}, "flags"),
        Flag("out", str | None, "a CSV file to write; none: print", None, {}, "flags"),
        FILL,
        *(f._replace(group="flags") for f in general_flags() if f.key == "debug"),
    ]
    about = "A prediction for every row of a file; its label column, if it has one, is not looked at."
    given = Parser("coterie predict RUN FILE", flags, about).given(argv)
    result, (file,) = finished(words, 2, "coterie predict RUN FILE with --client NAME, --cluster K or --support FILE")
    cluster = typed(flags[1], given["cluster"]) if "cluster" in given else None
    support = labelled(result, Path(given["support"]), given) if "support" in given else None
    x, _ = rows_of(result, file, given)
    found = result.predict(x, client=given.get("client"), cluster=cluster, support=support).tolist()
    names = result._run.fed.labels
    rows = [[names[v] if names and isinstance(v, int) else v] for v in found]
    if "out" in given:
        with open(given["out"], "w", newline="", encoding="utf-8") as to:
            csv.writer(to).writerows([["prediction"], *rows])
        print(f"{len(rows)} predictions in {given['out']}")
    else:
        csv.writer(sys.stdout, lineterminator="\n").writerows([["prediction"], *rows])
    return 0


def export(words: list[str], argv: list[str]) -> int:
    flags = [
        Flag(
            "per",
            str | None,
            "none: cluster, where there are groups",
            None,
            {"choices": ("cluster", "client")},
            "flags",
        ),
        Flag("out", str, "the folder to write; it must not exist", "models", {}, "flags"),
        *(f._replace(group="flags") for f in general_flags() if f.key == "debug"),
    ]
    about = "The models as safetensors files, and card.json with all that is needed to use them."
    given = Parser("coterie export RUN", flags, about).given(argv)
    result, _ = finished(words, 1, "coterie export RUN, such as coterie export runs/mine --out models")
    per = given.get("per")
    if per not in (None, "cluster", "client"):
        raise CoterieError(f"per is {per!r}: it must be one of cluster, client.")
    folder = result.export(given.get("out", "models"), per)
    print(f"{len(list(folder.glob('*.safetensors')))} models and card.json in {folder}")
    return 0
