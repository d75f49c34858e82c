"""Models for those who serve them: SavedModels for TensorFlow Serving, and files for other runtimes."""
