"""Finds and downloads files of weights."""
