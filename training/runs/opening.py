"""What is measured: a run's model, a `.keras` file or published weights, and on which data."""

import dataclasses
import pathlib
import re

import keras

import keras_vit
from keras_vit.label_spaces import NUM_CLASSES, imagenet1k_classes
from training import recipes
from training.errors import InputError, without_queries
from training.recipe.assignments import override
from training.recipe.config import Data, Recipe
from training.runs.folder import Run, load_model, read_class_names

# Not the parts of the splits: images that were trained on would come into the test.
_FREE = ("data.dataset", "data.directory", "data.tfds_directory", "fit.batch_size")
DATA_FIELDS = tuple(f"data.{field.name}" for field in dataclasses.fields(Data))


@dataclasses.dataclass(frozen=True)
class Opened:
    """A model that takes pixels from 0 to 255, the recipe of its run and its classes' names; `None`: not known."""

    source: str
    model: keras.Model
    recipe: Recipe | None = None
    class_names: list[str] | None = None

    def is_own_data(self, data):
        """Whether the model was trained on these data."""
        own = self.recipe and self.recipe.data
        return bool(own) and _is_same(own.dataset, data.dataset) and _place(own.directory) == _place(data.directory)


def _is_same(dataset, other):
    """Whether two names are of one data set: `cifar10` and `cifar10:3.0.2` have the same images."""
    return re.split("[/:]", dataset)[0] == re.split("[/:]", other)[0]


def _place(directory):
    """A directory by the one name of it, however it was written; an address such as gs://bucket/folder as it is."""
    if directory is None or "://" in directory:
        return directory
    return pathlib.Path(directory).expanduser().resolve()


def open_model(source):
    """Opens a model to measure it.

    Args:
        source: The folder of a run; a `.keras` file; or weights as `keras_vit.from_pretrained` takes them, a name in
            the catalogue among them.

    Returns:
        An `Opened`.

    Raises:
        InputError: If it is none of these, or takes pixels that are normalised already.
    """
    path = pathlib.Path(source)
    run = Run(path)
    if run.recipe.is_file():
        return Opened(str(source), load_model(run.model), recipes.load(str(run.recipe)), read_class_names(run))
    if path.suffix == ".keras":
        model = load_model(path)
    else:
        try:
            model = keras_vit.from_pretrained(str(source), include_preprocessing=True)
        except (TypeError, OSError) as error:
            raise InputError(str(error)) from error
        except ValueError as error:
            no_run = "" if path.is_file() else f" And {source} is not the folder of a run: it has no {run.recipe.name}."
            raise InputError(f"{str(error).rstrip('.')}.{no_run}") from error
    return Opened(without_queries(str(source)), model, class_names=_check(model, source))


def _check(model, source):
    """The names of a model's classes, as far as its label space says them."""
    try:
        description = keras_vit.describe(model)
    except ValueError as error:
        raise InputError(f"{source}: {error}") from error
    if not description.pixels["normalize"]:
        raise InputError(
            f"{source} expects normalised pixels, and gets those from 0 to 255. Build it with "
            f"include_preprocessing=True."
        )
    if description.label_space == "imagenet1k" and model.output_shape[-1] == NUM_CLASSES["imagenet1k"]:
        return [wnid for wnid, _ in imagenet1k_classes()]
    return None


def recipe_for(opened, assignments, of_other_data=DATA_FIELDS):
    """The recipe whose `data` and `fit.batch_size` say what a model is measured on.

    Args:
        opened: `Opened`
        assignments: Changes of the data. A model without a run has none of its own, and needs `data.dataset=NAME`.
        of_other_data: Which fields may be changed where the data are not the run's own.

    Raises:
        InputError: If no data are named, or a field is changed that must not be.
    """
    changed = dict(assignment.partition("=")[::2] for assignment in assignments)
    own = opened.recipe and opened.recipe.data
    name = changed.get("data.dataset", own and own.dataset)
    if name is None:
        raise InputError(f"{opened.source} is no run, and so has no data of its own. Name some: data.dataset=NAME")
    recipe, free = opened.recipe or recipes.load("digits"), _FREE
    if own is None or not _is_same(name, own.dataset):
        # What is said of one data set's directory and splits means nothing for another.
        tfds_directory = own.tfds_directory if own and name not in ("folder", "records") else None
        recipe = dataclasses.replace(recipe, data=Data(dataset=name, tfds_directory=tfds_directory))
        free = tuple(dict.fromkeys((*_FREE, *of_other_data)))
    for field in changed.keys() - set(free):
        raise InputError(f"{field} cannot be changed for a trained model. What can: {', '.join(free)}")
    return override(recipe, assignments)
