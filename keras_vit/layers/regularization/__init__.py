"""Layers that drop values, residual branches or patches in training."""
