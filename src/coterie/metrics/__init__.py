"""Metrics: test scores (`scores.py`) and cluster assignments (`clusters.py`)."""

from coterie.metrics.clusters import agreement as agreement
from coterie.metrics.clusters import hard_labels as hard_labels
from coterie.metrics.clusters import match_sources as match_sources
from coterie.metrics.clusters import planted_error as planted_error
from coterie.metrics.clusters import weights_error as weights_error
from coterie.metrics.scores import METRICS as METRICS
from coterie.metrics.scores import Metric as Metric
from coterie.metrics.scores import Row as Row
from coterie.metrics.scores import Scores as Scores
from coterie.metrics.scores import find_comparison_metric as find_comparison_metric
from coterie.metrics.scores import main_metric as main_metric
from coterie.metrics.scores import score_clients as score_clients
