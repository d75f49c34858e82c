"""The fields of a recipe, and how recipes are read and changed."""
