"""Recipes and the command line that runs them: `python -m training`."""
