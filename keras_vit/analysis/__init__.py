"""What a model computes on the way, and what it has learned. Arrays in, NumPy arrays out; `plots` draws them."""
