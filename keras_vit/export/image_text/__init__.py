"""The SavedModel of an image-text model, whose signatures compute images, texts, and both."""
