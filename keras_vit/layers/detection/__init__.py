"""Boxes and their labels."""
