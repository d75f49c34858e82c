"""Models that several studies train, as changes to a recipe."""

import functools

from training.data.loading import load_dataset
from training.errors import InputError
from training.studies.study import Point

_LARGE_IMAGE = 128  # Pixels. Smaller images are too small for the paper's patches and strides.
_RATES = ("0.001", "0.002", "0.004")
_SMALL_RESNET = "width=16", "expansion=1"


def resnet(function, *arguments):
    """Replaces the ViT by a ResNet: the `function` of `keras_vit`, and its `arguments` (`name=value`)."""
    changes = (f"model.arguments.{argument}" for argument in arguments)
    scratch = "model.config=none", "model.weights=none", "model.attention_initialization=random"
    return (*scratch, f"model.function={function}", *changes)


def has_large_images(recipe):
    """Whether the images have at least 128 pixels, so that the published models can be trained."""
    return image_shape(recipe)[0] >= _LARGE_IMAGE


def image_shape(recipe):
    """The height, the width and the number of channels of the images of a recipe that trains from scratch."""
    return recipe.model.input_shape or (224, 224, 3)


def small_vit(width):
    """A ViT for small images: 4 blocks of the given width, patches of 4 x 4 pixels."""
    fields = {"patch_size": 4, "hidden_dim": width, "num_layers": 4, "num_heads": 3, "mlp_dim": 2 * width}
    return tuple(f"model.config.{name}={value}" for name, value in fields.items())


def small_hybrid(recipe, width, scale=2):
    """The same with a small ResNet as its stem, for images that are enlarged by a factor."""
    stem = "model.config.stem.stage_depths=1,1", "model.config.stem.width=32"
    return (*small_vit(width), "model.config.patch_size=1", *stem, *_enlarged(recipe, scale))


def small_resnet(recipe, stage_depths):
    """A BiT-ResNet for images that are enlarged by a factor of two."""
    return (*resnet("BiTResNet", f"stage_depths={stage_depths}", "width=32"), *_enlarged(recipe, 2))


def small_vt_resnet(size):
    """A VT-ResNet with two modules of tokens, for images that are resized to a square."""
    arguments = "stage_depths=2,2,2", *_SMALL_RESNET, "num_modules=2", "filters=128", "token_dim=256", "num_heads=4"
    return (*resnet("VTResNet", *arguments, "group_width=16"), _square(size))


def resnet_of_vt(size):
    """The ResNet that `small_vt_resnet` changes: its last stage is in place of the modules."""
    return (*resnet("ResNet", "stage_depths=2,2,2,2", *_SMALL_RESNET), _square(size))


def _square(size):
    return f"model.input_shape={size},{size},3"


def _enlarged(recipe, scale):
    height, width, channels = image_shape(recipe)
    return (f"model.input_shape={scale * height},{scale * width},{channels}",)


def require_plain_vit(recipe):
    """Raises an InputError unless a recipe trains a ViT without a stem, whose fields a study can change."""
    if recipe.model.config is None or recipe.model.config.stem is not None:
        raise InputError("This study requires a recipe with a model.config that has no stem.")


@functools.cache
def classes_and_size(data):
    """The class names and the number of training images of a data set, which are read once."""
    dataset = load_dataset(data)
    return dataset.class_names, dataset.source("train").size


def halves_of_classes(recipe):
    """The names of every second class, and those of the others. Of CIFAR-10: airplane, bird, deer, frog, ship."""
    names, _ = classes_and_size(recipe.data)
    if len(names) < 4:
        raise InputError(f"This study requires at least four classes. Received: {', '.join(names)}")
    return names[::2], names[1::2]


def learning_rates(series, changes, rates=_RATES, initial=None):
    """The points of a series with different learning rates. `initial` is the `initial` of each `Point`."""
    return [Point(series, f"rate {rate}", (*changes, f"optimizer.learning_rate={rate}"), initial) for rate in rates]
