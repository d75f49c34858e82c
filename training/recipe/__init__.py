"""What a recipe is, and how it is read and changed."""
