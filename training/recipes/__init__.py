"""The recipes: one module per recipe, each with a `RECIPE`."""

import importlib
import pathlib
import pkgutil

from training.errors import InputError

NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load(name):
    """Loads a recipe by its name, or from the folder of a run or its `recipe.json`.

    Raises:
        InputError: If there is no such recipe. The message lists all recipes.
    """
    if name in NAMES:
        return importlib.import_module(f"training.recipes.{name}").RECIPE
    from training.recipe.assignments import from_dict, read_run_info

    path = pathlib.Path(name)
    if path.is_dir():
        path = path / "recipe.json"
    if path.suffix == ".json" and path.is_file():
        return from_dict(read_run_info(path)["recipe"])
    from keras_vit.checks import did_you_mean

    raise InputError(
        f"There is no recipe {name!r}.{did_you_mean(name, NAMES)} Recipes: {', '.join(NAMES)}; or the path of a "
        f"run's folder or recipe.json."
    )
