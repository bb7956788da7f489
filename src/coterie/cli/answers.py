"""`coterie assign`, `coterie predict` and `coterie export`: what a finished run, or its exported models, are for."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.answers import CARD, Exported
from coterie.cli.flags import Flag, Parser, general_flags, typed
from coterie.cli.progress import Watcher
from coterie.cli.train import opened
from coterie.data.tables import read_npz, read_table
from coterie.errors import CoterieError
from coterie.result import Result

FILL = Flag("fill", str | None, "mean or median for missing cells; none: as in training", None, {}, "flags")
DEBUG = next(f._replace(group="flags") for f in general_flags() if f.key == "debug")
Source = Result | Exported


def source(words: list[str], need: int, usage: str) -> tuple[Source, list[Path]]:
    """The run or the exported models, and the files named after it."""
    if len(words) != need:
        raise CoterieError(f"write {usage}.")
    path = Path(words[0])
    return Exported(path) if (path / CARD).exists() else Result(opened(path, None)), [Path(w) for w in words[1:]]


def rows_of(of: Source, file: Path, given: dict[str, Any]) -> tuple[Any, Any]:
    """(x, y or None) of a table, encoded as in training, or of an npz file."""
    if file.suffix.lower() == ".npz":
        arrays = read_npz(file)
        return arrays["x"], arrays["y"]
    schema = of.schema if isinstance(of, Exported) else of._run.fed.schema
    if schema is None:
        raise CoterieError(f"the training data were no tables, so {file} must be an .npz file with x and y.")
    options = {} if isinstance(of, Exported) else trained_with(of)
    left_out = [
        *texts(options.get("drop")),
        *(options.get(k) for k in ("client_column", "split_column", "time_column")),
    ]
    frame = read_table(file)
    known = frame.drop(columns=[c for c in left_out if c in frame and c not in (schema.label, None)])
    return schema.encode(known, given.get("fill") or options.get("fill"), where=str(file))


def texts(value: Any) -> Sequence[str]:
    return value.split(",") if isinstance(value, str) else value or ()


def trained_with(result: Result) -> dict[str, Any]:
    """The options of the data set, as the run's folder has them."""
    assert result.folder is not None
    config = json.loads((result.folder / "config.json").read_text(encoding="utf-8"))
    return dict(config.get("origin", {}).get("data") or {})


def labelled(of: Source, file: Path, given: dict[str, Any]) -> tuple[Any, Any]:
    x, y = rows_of(of, file, given)
    if y is None:
        schema = of.schema if isinstance(of, Exported) else of._run.fed.schema
        raise CoterieError(f"{file} lacks the column {schema.label}: add the labels.")  # type: ignore[union-attr]
    return x, y


def assign(words: list[str], argv: list[str]) -> int:
    shown = [f._replace(group="flags") for f in general_flags() if f.key == "json"]
    about = "The group whose model has the least loss on a new client's labelled rows, and by how much."
    given = Parser("coterie assign RUN FILE", [FILL, *shown, DEBUG], about).given(argv)
    with Watcher()():
        of, (file,) = source(words, 2, "coterie assign RUN FILE, such as coterie assign runs/mine new.csv")
        found = of.assign(*labelled(of, file, given))
    print(json.dumps(found._asdict()) if "json" in given else f"{file.stem}: {found}")
    return 0


def predict(words: list[str], argv: list[str]) -> int:
    flags = [
        Flag("client", str | None, "with the model of this client", None, {}, "flags"),
        Flag("cluster", int | None, "with the model of this group", None, {}, "flags"),
        Flag("support", str | None, "as a newcomer that has these labelled rows, a file", None, {}, "flags"),
        Flag("out", str | None, "a CSV file to write; none: print", None, {}, "flags"),
        FILL,
        DEBUG,
    ]
    about = "A prediction for every row of a file; its label column, if it has one, is not looked at."
    given = Parser("coterie predict RUN FILE", flags, about).given(argv)
    cluster = typed(flags[1], given["cluster"]) if "cluster" in given else None
    with Watcher()():
        of, (file,) = source(words, 2, "coterie predict RUN FILE with --client NAME, --cluster K or --support FILE")
        support = labelled(of, Path(given["support"]), given) if "support" in given else None
        x, _ = rows_of(of, file, given)
        if isinstance(of, Result):
            found, names = (
                of.predict(x, client=given.get("client"), cluster=cluster, support=support),
                of._run.fed.labels,
            )
        else:
            found, names = of.predict(x, exported_name(of, given.get("client"), cluster, support)), of.card["labels"]
    rows = [[names[v] if names and isinstance(v, int) else v] for v in found.tolist()]
    if "out" in given:
        with open(given["out"], "w", newline="", encoding="utf-8") as to:
            csv.writer(to).writerows([["prediction"], *rows])
        print(f"{len(rows)} predictions in {given['out']}")
    else:
        csv.writer(sys.stdout, lineterminator="\n").writerows([["prediction"], *rows])
    return 0


def exported_name(of: Exported, client: str | None, cluster: int | None, support: Any) -> str:
    """Which of the exported models is meant; for a newcomer the one that fits its rows best."""
    if sum(v is not None for v in (client, cluster, support)) != 1:
        raise CoterieError("predict needs one of client, cluster and support: whose model is meant?")
    if support is not None:
        return list(of.models)[of.assign(*support).group]
    titles = {facts["of"]: name for name, facts in of.card["files"].items()}
    return titles.get(client or f"group {cluster}", client or f"group-{cluster}")


def export(words: list[str], argv: list[str]) -> int:
    flags = [
        Flag("per", str | None, "cluster or client; none: cluster, where there are groups", None, {}, "flags"),
        Flag("out", str, "the folder to write; it must not exist", "models", {}, "flags"),
        DEBUG,
    ]
    about = "The models as safetensors files, and card.json with all that is needed to use them."
    given = Parser("coterie export RUN", flags, about).given(argv)
    per = given.get("per")
    if per not in (None, "cluster", "client"):
        raise CoterieError(f"per is {per!r}: it must be one of cluster, client.")
    with Watcher()():
        of, _ = source(words, 1, "coterie export RUN, such as coterie export runs/mine --out models")
        if isinstance(of, Exported):
            raise CoterieError(f"{words[0]} holds exported models already: give the folder of a run.")
        folder = of.export(given.get("out", "models"), per)
    print(f"{len(list(folder.glob('*.safetensors')))} models and {CARD} in {folder}")
    return 0
