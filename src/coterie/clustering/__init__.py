"""Clustering on the server: k-means++, exact coordinates for few long vectors, sketches of models,
balls, the number of clusters, matching of labels."""

from coterie.clustering.choose import RULES, Bound, choose_clusters, few_rows
from coterie.clustering.kmeans import coordinates, group_mean, kmeans
from coterie.clustering.matching import matched, mean_models, overlap
from coterie.clustering.serving import best_serving
from coterie.clustering.sketch import sketch
from coterie.clustering.threshold import Balls, Threshold, own_balls, threshold_clusters

__all__ = [
    "RULES",
    "Balls",
    "Bound",
    "Threshold",
    "choose_clusters",
    "best_serving",
    "coordinates",
    "few_rows",
    "group_mean",
    "kmeans",
    "matched",
    "mean_models",
    "overlap",
    "own_balls",
    "sketch",
    "threshold_clusters",
]
