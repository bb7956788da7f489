"""Clustering on the server: k-means++, exact coordinates for few long vectors, sketches of models."""

from coterie.clustering.kmeans import coordinates, group_mean, kmeans
from coterie.clustering.sketch import sketch

__all__ = ["coordinates", "group_mean", "kmeans", "sketch"]
