"""Analysis of what a model has learned and computes internally. Results are NumPy arrays. See `plots` for figures."""
