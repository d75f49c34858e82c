"""Reads headers and markers of encoded images."""
