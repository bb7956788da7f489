"""Means that withstand hostile clients, and the attacks that they are tried against."""

from coterie.robust.attacks import ATTACKS, attacked, flipped_labels
from coterie.robust.rules import MOST_FOR_KRUM, RULES, robust_means

__all__ = ["ATTACKS", "MOST_FOR_KRUM", "RULES", "attacked", "flipped_labels", "robust_means"]
