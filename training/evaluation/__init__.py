"""What is measured of a model."""
