"""How sure each client's membership of its group is.

At the end of a run every client that has a group is sent the groups' models. It answers with its
mean loss under each, and with how often each fits best when its rows are drawn again and again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.contract import Sums
from coterie.core.params import Params, count
from coterie.engines.exchange import RoundContext

MOST_CENTRES = 50  # with more, each client would compute for longer than in a round
ENOUGH_HELD_OUT = 10  # held-out rows with which a client is judged by these instead
DOUBTFUL = 0.8  # a client that is less sure than this may belong elsewhere
Answers = dict[str, np.ndarray]  # losses and shares [N, K], rows [N]; NaN: not asked


class MembershipConfidence(NamedTuple):
    """How sure each client's membership is, [N] each; NaN: unknown."""

    confidence: np.ndarray  # share of resamples of its rows in which its group has the least loss
    margin: np.ndarray  # by which share the next group's loss is higher; below 0: it is lower
    second: np.ndarray  # int64, the best of the other groups; −1: unknown
    rows: np.ndarray  # how many of its rows decided

    @property
    def doubtful(self) -> np.ndarray:
        """Whose membership is in doubt, bool [N]."""
        return self.confidence < DOUBTFUL


# ------------------------------------------------------------------------------ asking clients
def measure_memberships(
    ask: RoundContext, centres: Params | None, groups: np.ndarray | None, min_rows_to_report: int
) -> Answers:
    """What the clients that have a group answer; nothing where there are no groups to compare.

    Clients with `ENOUGH_HELD_OUT` valid rows are judged by these, which trained no model, others by
    their training rows.
    """
    if centres is None or groups is None or not 2 <= count(centres) <= MOST_CENTRES:
        return {}
    rows = ask.roster.rows
    ids = ask.all_clients[torch.from_numpy(groups[ask.all_clients.numpy()] >= 0)]
    held_out = rows.valid[ids] >= max(min_rows_to_report, ENOUGH_HELD_OUT)
    trained = ~held_out & (rows.train[ids] >= min_rows_to_report)
    answers: Answers = {
        "losses": np.full((len(groups), count(centres)), np.nan),
        "shares": np.full((len(groups), count(centres)), np.nan),
        "rows": np.full(len(groups), np.nan),
    }
    _ask_about(ask, ids[held_out], "valid", centres, answers)
    _ask_about(ask, ids[trained], None, centres, answers)
    return answers


def _ask_about(
    ask: RoundContext, ids: Tensor, split: str | None, centres: Params, answers: Answers
) -> None:
    """Ask these clients about one part of their rows, and write down what they answer."""
    if not len(ids):
        return
    sums: Sums = ask(ask.root.membership, ids, shared=centres, stream="evaluate", split=split)
    at = sums.ids.numpy()
    for name in ("losses", "shares"):
        answers[name][at] = sums.report[name].cpu().double().numpy()
    answers["rows"][at] = getattr(ask.roster.rows, split or "train")[sums.ids].numpy()


# ------------------------------------------------------------------------------ what they mean
def membership_confidence(
    answers: Answers, groups: np.ndarray | None
) -> MembershipConfidence | None:
    """How sure each client's membership of its group [N] is; None if nobody was asked."""
    if not answers or groups is None:
        return None
    everyone = np.arange(len(groups))
    known = (groups >= 0) & ~np.isnan(answers["rows"])
    own = np.where(known, groups, 0)
    others = answers["losses"].copy()
    others[everyone, own] = np.inf
    others[~known] = np.inf
    second = others.argmin(1)
    own_loss = answers["losses"][everyone, own]
    other_loss = others[everyone, second]
    with np.errstate(divide="ignore", invalid="ignore"):
        margin = (other_loss - own_loss) / np.minimum(own_loss, other_loss)
    return MembershipConfidence(
        confidence=np.where(known, answers["shares"][everyone, own], np.nan),
        margin=np.where(known, margin, np.nan),
        second=np.where(known, second, -1),
        rows=np.where(known, answers["rows"], np.nan),
    )
