"""What a model computes on the way: features, attention. Arrays in, NumPy arrays out."""
