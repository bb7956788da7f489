"""What several methods share; `algorithms` and `baselines` build on it."""
