"""The contract between a method and the engines, and what both are built from."""
