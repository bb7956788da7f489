"""Use of trained runs: predictions, cluster assignment of new clients, exported models."""
