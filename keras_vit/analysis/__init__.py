"""Analysis of what a model has learned and computes internally. Results are NumPy arrays, which `plots` draws."""
