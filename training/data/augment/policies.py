"""RandAugment (arXiv 1909.13719) and AutoAugment (arXiv 1805.09501), with the levels of Google's code.

Shapes: H W C image.

The operations, the levels and the policy are copied from pp/autoaugment.py in big_vision. big_vision copied them from
EfficientNet's code in tensorflow/tpu. This module differs from big_vision as follows:

* Shifts and cutout depend on the image size. In big_vision, RandAugment always shifts by up to 100 pixels, and half the
  side of a cutout square is up to 40 pixels. This module uses these limits for images of 224 pixels.
* AutoAugment uses the same shifts as RandAugment. In big_vision, AutoAugment shifts by up to 250 pixels. In the paper,
  it shifts images of 331 pixels by up to 150 pixels.
* At levels above 10, the bits of Posterize are limited to 8 and the threshold of Solarize to 256. With these values,
  the operations do not change the image.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from training.data.augment import operations

_MAX_LEVEL = 10  # The strongest level in the papers. RandAugment's levels may exceed it.
_REFERENCE_SIDE = 224


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation of a policy.

    `function` changes an image, its first argument. `num_arguments` is the number of its other arguments: 0, 1 or 2.
    The first of these depends on the level. `scale` converts level / 10 to it. If `is_signed`, it is negated with
    probability 1/2. The second is a pair of random numbers, uniform from 0 to 1.
    """

    function: Callable
    num_arguments: int = 0
    scale: Callable = lambda part: 0.0
    is_signed: bool = False


def _shift(part):
    return 100 / _REFERENCE_SIDE * part


def _enhancement(part):
    return 0.1 + 1.8 * part


OPERATIONS = {
    "AutoContrast": Operation(operations.auto_contrast),
    "Equalize": Operation(operations.equalize),
    "Invert": Operation(operations.invert),
    "Rotate": Operation(operations.rotate, 1, lambda part: 30 * part, is_signed=True),
    # At least one bit is kept, as in big_vision, which requests zero bits at low levels. TensorFlow then keeps one
    # bit, because it shifts bytes by at most seven bits.
    "Posterize": Operation(operations.posterize, 1, lambda part: min(max(int(part * 4), 1), 8)),
    "Solarize": Operation(operations.solarize, 1, lambda part: min(int(part * 256), 256)),
    "Color": Operation(operations.color, 1, _enhancement),
    "Contrast": Operation(operations.contrast, 1, _enhancement),
    "Brightness": Operation(operations.brightness, 1, _enhancement),
    "Sharpness": Operation(operations.sharpness, 1, _enhancement),
    "ShearX": Operation(operations.shear_x, 1, lambda part: 0.3 * part, is_signed=True),
    "ShearY": Operation(operations.shear_y, 1, lambda part: 0.3 * part, is_signed=True),
    "TranslateX": Operation(operations.translate_x, 1, _shift, is_signed=True),
    "TranslateY": Operation(operations.translate_y, 1, _shift, is_signed=True),
    "Cutout": Operation(operations.cutout, 2, lambda part: 40 / _REFERENCE_SIDE * part),
    "SolarizeAdd": Operation(operations.solarize_add, 1, lambda part: min(int(part * 110), 255)),
}

# Each sub-policy has two steps (operation, probability, level). They are policy v0 of big_vision, which differs from
# Table 9 of the paper.
AUTOAUGMENT = (
    (("Equalize", 0.8, 1), ("ShearY", 0.8, 4)),
    (("Color", 0.4, 9), ("Equalize", 0.6, 3)),
    (("Color", 0.4, 1), ("Rotate", 0.6, 8)),
    (("Solarize", 0.8, 3), ("Equalize", 0.4, 7)),
    (("Solarize", 0.4, 2), ("Solarize", 0.6, 2)),
    (("Color", 0.2, 0), ("Equalize", 0.8, 8)),
    (("Equalize", 0.4, 8), ("SolarizeAdd", 0.8, 3)),
    (("ShearX", 0.2, 9), ("Rotate", 0.6, 8)),
    (("Color", 0.6, 1), ("Equalize", 1.0, 2)),
    (("Invert", 0.4, 9), ("Rotate", 0.6, 0)),
    (("Equalize", 1.0, 9), ("ShearY", 0.6, 3)),
    (("Color", 0.4, 7), ("Equalize", 0.6, 0)),
    (("Posterize", 0.4, 6), ("AutoContrast", 0.4, 7)),
    (("Solarize", 0.6, 8), ("Color", 0.6, 9)),
    (("Solarize", 0.2, 4), ("Rotate", 0.8, 9)),
    (("Rotate", 1.0, 7), ("TranslateY", 0.8, 9)),
    (("ShearX", 0.0, 0), ("Solarize", 0.8, 4)),
    (("ShearY", 0.8, 0), ("Color", 0.6, 4)),
    (("Color", 1.0, 0), ("Rotate", 0.6, 2)),
    (("Equalize", 0.8, 4), ("Equalize", 0.0, 8)),
    (("Equalize", 1.0, 4), ("AutoContrast", 0.6, 2)),
    (("ShearY", 0.4, 7), ("SolarizeAdd", 0.6, 7)),
    (("Posterize", 0.8, 2), ("Solarize", 0.6, 10)),
    (("Solarize", 0.6, 8), ("Equalize", 0.6, 1)),
    (("Color", 0.8, 6), ("Rotate", 0.4, 5)),
)


def randaugment(image, seed, num_operations, magnitude):
    """Applies random operations one after the other, all at the same level. Each operation is equally probable.

    Args:
        image: uint8 (H, W, C), C 1 or 3.
        seed: (2,) integers.
        num_operations: Number of operations.
        magnitude: Level of the operations, from 0 to 30.

    Returns:
        uint8 (H, W, C)
    """
    arguments = tf.constant([argument(name, magnitude) for name in OPERATIONS], tf.float32)
    for draws in tf.unstack(tf.random.stateless_uniform([num_operations, 4], seed)):
        index = tf.cast(draws[0] * len(OPERATIONS), tf.int32)
        image = apply(image, index, arguments[index], draws[1:])
    return image


def autoaugment(image, seed):
    """Applies one of AutoAugment's 25 sub-policies for ImageNet: two operations, each with its probability and level.

    Args:
        image: uint8 (H, W, C), C 1 or 3.
        seed: (2,) integers.

    Returns:
        uint8 (H, W, C)
    """
    names = list(OPERATIONS)
    indices = tf.constant([[names.index(name) for name, _, _ in steps] for steps in AUTOAUGMENT])
    probabilities = tf.constant([[probability for _, probability, _ in steps] for steps in AUTOAUGMENT])
    arguments = tf.constant([[argument(name, level) for name, _, level in steps] for steps in AUTOAUGMENT])
    draws = tf.random.stateless_uniform([9], seed)
    policy = tf.cast(draws[0] * len(AUTOAUGMENT), tf.int32)
    for step, step_draws in enumerate(tf.unstack(tf.reshape(draws[1:], [2, 4]))):
        is_applied = step_draws[0] < probabilities[policy, step]
        index = tf.where(is_applied, indices[policy, step], len(names))
        image = apply(image, index, arguments[policy, step], step_draws[1:])
    return image


def argument(name, level):
    """The argument of an operation at a level, without its random sign."""
    return float(OPERATIONS[name].scale(level / _MAX_LEVEL))


def apply(image, index, value, draws):
    """Applies one operation. The other operations are not computed.

    Args:
        image: uint8 (H, W, C)
        index: Index of the operation in `OPERATIONS`, a scalar, or `len(OPERATIONS)` for no change.
        value: Argument of the operation, without sign.
        draws: (3,) random numbers, uniform from 0 to 1. The first one determines the sign of the argument. The other
            two determine the centre of the cutout square.

    Returns:
        uint8 (H, W, C)
    """
    negated = tf.where(draws[0] < 0.5, -value, value)

    def branch(operation):
        arguments = (negated if operation.is_signed else value, draws[1:])
        return lambda: tf.ensure_shape(operation.function(image, *arguments[: operation.num_arguments]), image.shape)

    return tf.switch_case(index, [*map(branch, OPERATIONS.values()), lambda: image])
