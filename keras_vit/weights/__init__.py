"""Finds, downloads, reads, renames, adapts, assigns and saves published weights."""
