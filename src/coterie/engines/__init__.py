"""Engines run a client function on many clients and aggregate their updates."""
