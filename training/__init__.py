"""Recipes and the programs that run them: `python -m training`."""
