"""Convolutional networks that stand before the patches."""
