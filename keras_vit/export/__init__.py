"""Exports of models: SavedModels for TensorFlow Serving, and files for other runtimes."""
