"""Opens a model to be measured, from a run, a `.keras` file or published weights, and chooses its data."""

import dataclasses
import pathlib
import re

import keras

import keras_vit
from keras_vit.label_spaces import NUM_CLASSES, imagenet1k_classes
from training import recipes
from training.data.contents import Contents
from training.errors import InputError, without_queries
from training.recipe.assignments import override
from training.recipe.config import Data, Recipe
from training.runs.folder import Run, load_model, read_class_names, read_record

# Fields that may be changed for every model. Splits are not among them, because a changed test split may contain
# training images.
_CHANGEABLE = ("data.dataset", "data.directory", "data.tfds_directory", "fit.batch_size")
DATA_FIELDS = tuple(f"data.{field.name}" for field in dataclasses.fields(Data))


@dataclasses.dataclass(frozen=True)
class Opened:
    """A model that accepts pixels from 0 to 255. `run` has its folder. Fields that are unknown are `None`."""

    source: str
    model: keras.Model
    run: Run
    recipe: Recipe | None = None
    class_names: list[str] | None = None

    def is_data_of_run(self, data):
        """Whether the model was trained on these data."""
        if self.recipe is None:
            return False
        run_data = self.recipe.data
        is_same_directory = _resolve(run_data.directory) == _resolve(data.directory)
        return is_same_directory and _is_same_dataset(run_data.dataset, data.dataset)


def _is_same_dataset(dataset, other):
    """Whether two names refer to the same data set, in any version, e.g. `cifar10` and `cifar10:3.0.2`."""
    return re.split("[/:]", dataset)[0] == re.split("[/:]", other)[0]


def _resolve(directory):
    """The absolute path of a directory; a URL such as gs://bucket/folder is returned unchanged."""
    if directory is None or "://" in directory:
        return directory
    return pathlib.Path(directory).expanduser().resolve()


def open_source(source, names=None, templates="clip_best"):
    """Opens a model to be measured.

    Args:
        source: Folder of a run, `.keras` file, or weights as in `keras_vit.from_pretrained`, including names from
            the catalogue. With `names`, all of these are image-text models.
        names: {label of a class: its names}, for an image-text model.
        templates: As in `keras_vit.ImageTextModel.classifier`.

    Returns:
        An `Opened`.

    Raises:
        InputError: If `source` is none of these, or if the model expects normalised pixels.
    """
    path = pathlib.Path(source)
    run = Run(path.parent if path.suffix == ".keras" else path)
    if names is not None:
        file = run.model if run.folder == path and run.recipe.is_file() else source
        return Opened(without_queries(str(source)), _classifier(file, names, templates), run, None, list(names))
    if run.folder == path and run.recipe.is_file():
        return Opened(str(source), load_model(run.model), run, recipes.load(str(run.recipe)), read_class_names(run))
    if path.suffix == ".keras":
        model = load_model(path)
    else:
        try:
            model = keras_vit.from_pretrained(str(source), include_preprocessing=True)
        except (TypeError, OSError) as error:
            raise InputError(str(error)) from error
        except ValueError as error:
            hint = "" if path.is_file() else f"{source} is not the folder of a run: it has no {run.recipe.name}. "
            raise InputError(f"{hint}{error}") from error
    try:
        description = keras_vit.describe(model)
    except ValueError as error:
        raise InputError(f"{source}: {error}") from error
    if not description.pixels["normalize"]:
        raise InputError(
            f"{source} expects normalised pixels, but pixels from 0 to 255 are given. Build the model with "
            f"include_preprocessing=True."
        )
    is_known = description.label_space == "imagenet1k" and model.output_shape[-1] == NUM_CLASSES["imagenet1k"]
    class_names = [wnid for wnid, _ in imagenet1k_classes()] if is_known else None
    return Opened(without_queries(str(source)), model, run, class_names=class_names)


def _classifier(source, names, templates):
    """The classifier of an image-text model for the names of classes."""
    model = load_model(pathlib.Path(source)) if pathlib.Path(source).suffix == ".keras" else open_pair(source)
    if not isinstance(model, keras_vit.ImageTextModel):
        raise InputError(f"--names needs an image-text model, but {source} is none.")
    try:
        return model.classifier(names, templates)
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise InputError(str(error)) from error


def open_pair(source):
    """The image-text model of published weights. Raises an InputError if they cannot be read."""
    try:
        return keras_vit.ImageTextModel.from_pretrained(source, include_preprocessing=True)
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise InputError(str(error)) from error


def load_data(load, run, is_data_of_run=True, disjoint=True):
    """Loads a data set with the splits of a run, so that no image that the run was trained on is a test image.

    Args:
        load: Function `load(disjoint=..., record=...)`, such as the method `load` of a task.
        run: `Run` with the folder of the model.
        is_data_of_run: Whether the run was trained on this data set.
        disjoint: As in `training.data.loading.load_dataset`.

    Raises:
        InputError: If the data set of the run contains none of its images.
    """
    record = read_record(run, "measure" if is_data_of_run else "measure_elsewhere")
    if record is None and not is_data_of_run and run.model.is_file():
        print(f"{run.folder} has no {run.splits.name}, so images that it was trained on are not recognised.")
    dataset = load(disjoint=disjoint, record=record)
    recorded = record.contents if is_data_of_run else Contents({})
    if recorded.items and not any(recorded.split_of(item) for item in dataset.contents):
        raise InputError(
            f"The data set of {run.folder} contains none of the images that it had when the run began. Restore them, "
            f"or choose other data."
        )
    return dataset


def recipe_for(opened, assignments, extra_fields=DATA_FIELDS):
    """The recipe that defines the data and the batch size with which a model is measured.

    Args:
        opened: `Opened`
        assignments: Changes to the data. They must contain `data.dataset=NAME` if the model does not belong to a run.
        extra_fields: Further fields that may be changed if the data set is not the run's data set.

    Raises:
        InputError: If there is no data set, or an assignment changes a field that may not be changed.
    """
    changed = dict(assignment.partition("=")[::2] for assignment in assignments)
    run_data = opened.recipe and opened.recipe.data
    name = changed.get("data.dataset", run_data and run_data.dataset)
    if name is None:
        raise InputError(f"{opened.source} is not a run and has no data of its own. Name a data set: data.dataset=NAME")
    recipe, accepted = opened.recipe or recipes.load("digits"), _CHANGEABLE
    if run_data is None or not _is_same_dataset(name, run_data.dataset):
        # The directory and splits of one data set do not apply to another.
        tfds_directory = run_data.tfds_directory if run_data and name not in ("folder", "records") else None
        recipe = dataclasses.replace(recipe, data=Data(dataset=name, tfds_directory=tfds_directory))
        accepted = tuple(dict.fromkeys((*_CHANGEABLE, *extra_fields)))
    for field in changed.keys() - set(accepted):
        raise InputError(f"{field} cannot be changed for a trained model. Accepted: {', '.join(accepted)}")
    return override(recipe, assignments)
