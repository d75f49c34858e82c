"""Data sets, and the batches made of their images."""
