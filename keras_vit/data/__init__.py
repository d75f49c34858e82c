"""Reads encoded images and tables of images. It knows no recipe, no splits and no augmentation."""
