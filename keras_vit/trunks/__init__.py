"""Convolutional networks that compute the feature maps of other models."""
