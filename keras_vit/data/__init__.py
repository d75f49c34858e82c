"""Reads samples from files and archives, and decodes images. It knows no recipe, no splits and no augmentation."""
