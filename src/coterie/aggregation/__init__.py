"""Aggregation of client updates: sums, norm clipping, robust means, and simulated attacks."""
