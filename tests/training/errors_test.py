"""Signatures in addresses are not shown."""

from training import recipes
from training.errors import InputError, without_queries
from training.recipe.assignments import as_text, override


def test_queries_are_left_out():
    for text, shown in (
        ("no address? none", "no address? none"),
        ("model.weights=https://a.org/x.npz?Signature=1&y=2: not found", "model.weights=https://a.org/x.npz not found"),
        ("'https://a.org/x.npz?Signature=1', gs://b/c#d", "'https://a.org/x.npz', gs://b/c"),
        ("see https://a.org/x.npz. Is it?", "see https://a.org/x.npz. Is it?"),
    ):
        assert without_queries(text) == str(InputError(text)) == shown


def test_a_recipe_keeps_what_it_does_not_show():
    source = "https://a.org/x.npz?Signature=1"
    recipe = override(recipes.load("finetune_vtab"), [f"model.weights={source}"])
    assert recipe.model.weights == source
    assert as_text([recipe.model.weights, 3]) == "https://a.org/x.npz,3"
