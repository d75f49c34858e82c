"""{kind of nesting: function (inner model) that returns the outer model and a function that gives the inner inputs}"""

import keras

from tests.models.tiny import SHAPE


def _sequential(inner):
    return keras.Sequential([keras.Input(SHAPE), inner, keras.layers.Dense(4)]), lambda images: images


def _functional(inner):
    inputs = keras.Input(SHAPE)
    # Keras's guide to transfer learning calls a backbone like this.
    return keras.Model(inputs, keras.layers.Dense(4)(inner(inputs, training=False))), lambda images: images


def _scaled(inner):
    inputs = keras.Input(SHAPE)
    x = keras.layers.Rescaling(0.5, offset=0.1)(inputs)
    return keras.Model(inputs, keras.layers.Dense(4)(inner(x))), lambda images: 0.5 * images + 0.1


def _twice_nested(inner):
    middle, _ = _sequential(inner)
    outer, prepared = _scaled(middle)
    return outer, prepared


def _extended(inner):
    return keras.Model(inner.input, keras.layers.Dense(4)(inner.output)), lambda images: images


NESTED = {
    "sequential": _sequential,
    "functional": _functional,
    "scaled": _scaled,
    "twice nested": _twice_nested,
    "extended": _extended,
}
