"""Variables that Keras creates in the first step of `fit` or `evaluate`."""

import contextlib

import keras


def created_outside_the_step():
    """Returns a context manager for a step. Variables created in it do not belong to the function that is traced.

    Keras creates the variables of the optimizer and of the metrics while TensorFlow traces the first step. TensorFlow
    traces a function that has created variables a second time, without their initial values. In this context,
    variables are created and initialised at once, as if they had been created before the step. The step is then traced
    once. On other backends, the context does nothing, because Keras creates the variables before the step.
    """
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    def create(next_creator, **arguments):
        with tf.init_scope():
            return next_creator(**arguments | {"experimental_enable_variable_lifting": False})

    return tf.variable_creator_scope(create)
