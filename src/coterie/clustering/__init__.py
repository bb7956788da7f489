"""Clustering on the server: k-means++, exact coordinates for few long vectors, sketches of models, balls, matching."""

from coterie.clustering.choose import RULES, Bound, choose_clusters, few_rows
from coterie.clustering.kmeans import coordinates, group_mean, kmeans
from coterie.clustering.matching import matched, overlap
from coterie.clustering.sketch import sketch
from coterie.clustering.threshold import Threshold, own_balls, threshold_clusters

__all__ = [
    "RULES",
    "Bound",
    "Threshold",
    "choose_clusters",
    "coordinates",
    "few_rows",
    "group_mean",
    "kmeans",
    "matched",
    "overlap",
    "own_balls",
    "sketch",
    "threshold_clusters",
]
