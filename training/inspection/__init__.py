"""Evaluation, explanation, prediction and export of trained models."""
