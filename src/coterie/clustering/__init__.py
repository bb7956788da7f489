"""Clustering on the server: k-means++, exact coordinates for few long vectors, sketches of models,
balls, the number of clusters, matching of labels."""

from coterie.clustering.choose import RULES, Bound, choose_clusters, few_rows
from coterie.clustering.kmeans import coordinates, group_mean, kmeans, kmeans_without_loners
from coterie.clustering.matching import matched, mean_models, overlap
from coterie.clustering.serving import (
    best_serving,
    directions,
    keep_best_serving,
    serving_centres,
    spare_centres,
)
from coterie.clustering.sketch import sketch
from coterie.clustering.threshold import Balls, Threshold, own_balls, threshold_clusters
from coterie.clustering.typical import hostile_share, largest, nearest, typical

__all__ = [
    "RULES",
    "Balls",
    "Bound",
    "Threshold",
    "choose_clusters",
    "best_serving",
    "coordinates",
    "directions",
    "few_rows",
    "group_mean",
    "hostile_share",
    "keep_best_serving",
    "kmeans",
    "kmeans_without_loners",
    "largest",
    "matched",
    "mean_models",
    "nearest",
    "overlap",
    "own_balls",
    "serving_centres",
    "sketch",
    "spare_centres",
    "threshold_clusters",
    "typical",
]
