"""The models of a network's groups, which its server has, as files."""

from __future__ import annotations

import shutil
from pathlib import Path

from coterie.runs.run import Run
from coterie.serve.card import CARD
from coterie.serve.export import export_groups


def export_models(run: Run, folder: Path) -> Path | None:
    """Write the groups' models, in place of those of an earlier export; None: there are no groups.

    A run whose server is started again at its end has exported them before.
    """
    trained = run.trained()
    if trained.centres is None:
        return None
    if (folder / CARD).exists():
        shutil.rmtree(folder)
    return export_groups(trained, folder)
