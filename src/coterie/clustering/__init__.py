"""Clustering on the server: k-means++, exact coordinates for few long vectors, sketches of models, balls, matching."""

from coterie.clustering.kmeans import coordinates, group_mean, kmeans
from coterie.clustering.matching import matched, overlap
from coterie.clustering.sketch import sketch
from coterie.clustering.threshold import Threshold, own_balls, threshold_clusters

__all__ = [
    "Threshold",
    "coordinates",
    "group_mean",
    "kmeans",
    "matched",
    "overlap",
    "own_balls",
    "sketch",
    "threshold_clusters",
]
