"""Runs: options, config, folder and checkpoints, the round loop, what it leaves behind, search."""
