"""Layers of Visual Transformers."""
