"""Convolutional backbones, which compute the feature maps for other models."""
