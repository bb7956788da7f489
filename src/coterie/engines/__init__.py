"""Engines map one client's function over clients; the fold says what their answers come to."""
