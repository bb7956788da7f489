"""Clustering on the server: k-means++, exact coordinates for few long vectors, sketches of models,
balls, the number of clusters, matching of labels."""

from coterie.clustering.choose import RULES, Bound, choose_clusters, log_rows_per_parameter
from coterie.clustering.kmeans import coordinates, group_mean, kmeans, kmeans_without_singletons
from coterie.clustering.matching import match_clusters, mean_models, overlap_counts
from coterie.clustering.serving import (
    find_centres,
    num_candidates,
    select_by_losses,
    select_centres,
    update_directions,
)
from coterie.clustering.sketch import sketch
from coterie.clustering.threshold import Balls, Threshold, balls_per_point, threshold_clusters
from coterie.clustering.typical import hostile_share, inlier_indices, inlier_mask, largest_inlier

__all__ = [
    "RULES",
    "Balls",
    "Bound",
    "Threshold",
    "choose_clusters",
    "select_by_losses",
    "coordinates",
    "update_directions",
    "log_rows_per_parameter",
    "group_mean",
    "hostile_share",
    "select_centres",
    "kmeans",
    "kmeans_without_singletons",
    "largest_inlier",
    "match_clusters",
    "mean_models",
    "inlier_mask",
    "overlap_counts",
    "balls_per_point",
    "find_centres",
    "sketch",
    "num_candidates",
    "threshold_clusters",
    "inlier_indices",
]
