"""Evaluation of models."""
