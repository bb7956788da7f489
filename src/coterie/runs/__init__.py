"""Runs: options, config, folder, checkpoints, the round loop and search."""
