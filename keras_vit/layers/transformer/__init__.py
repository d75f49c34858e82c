"""Layers of a Vision Transformer."""
