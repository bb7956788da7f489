"""Means that withstand hostile clients, and the attacks that they are tried against."""

from coterie.aggregation.attacks import ATTACKS, attacked, flipped_labels
from coterie.aggregation.rules import MOST_COMPARED, RULES, robust_means

__all__ = ["ATTACKS", "MOST_COMPARED", "RULES", "attacked", "flipped_labels", "robust_means"]
