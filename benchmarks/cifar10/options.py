"""The options of a small Vision Transformer that are compared, as changes to the recipe `cifar10_hour`."""

BASE = ()
"""Changes that all options have in common."""
OPTIONS = {
    "recipe": (),
}
