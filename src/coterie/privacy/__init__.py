"""Protection of what leaves a client: sums of masked vectors."""
