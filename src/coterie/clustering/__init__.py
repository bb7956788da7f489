"""Clustering on the server.

* `kmeans`: k-means++ on uploads, `coordinates` of few long vectors, `sketch` of a model
* `choose`: the number of clusters
* `matching`: labels that agree with earlier ones
* `threshold`: threshold clustering
* `losses`: choice among centres by loss
* `hostile`: outliers, and centres that hostile clients cannot capture
"""

from coterie.clustering.choose import RULES, Bound, choose_clusters, log_rows_per_parameter
from coterie.clustering.hostile import (
    find_centres,
    inlier_indices,
    inlier_mask,
    largest_inlier,
    num_candidates,
    select_by_losses,
    select_centres,
    update_directions,
)
from coterie.clustering.kmeans import (
    coordinates,
    group_mean,
    kmeans,
    kmeans_without_singletons,
    sketch,
)
from coterie.clustering.matching import match_clusters, mean_models, overlap_counts
from coterie.clustering.threshold import Balls, Threshold, balls_per_point, threshold_clusters

__all__ = [
    "RULES",
    "Balls",
    "Bound",
    "Threshold",
    "balls_per_point",
    "choose_clusters",
    "coordinates",
    "find_centres",
    "group_mean",
    "inlier_indices",
    "inlier_mask",
    "kmeans",
    "kmeans_without_singletons",
    "largest_inlier",
    "log_rows_per_parameter",
    "match_clusters",
    "mean_models",
    "num_candidates",
    "overlap_counts",
    "select_by_losses",
    "select_centres",
    "sketch",
    "threshold_clusters",
    "update_directions",
]
