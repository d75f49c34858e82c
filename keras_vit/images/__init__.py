"""Reads headers and markers of encoded images, and resizes decoded ones."""
