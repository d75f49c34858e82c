"""Calls Keras's exporters. Shapes: N images, H W C image."""

import keras

from keras_vit.export.answers import by_name
from keras_vit.export.signatures import output_of_signature
from keras_vit.layers.ops.exportable import exportable_operations
from keras_vit.preprocessing import preprocess_input


class FromPixels(keras.Model):
    """Normalises pixels in [0, 255], and returns the main outputs of a model: {name: tensor (N, ...)}.

    Args:
        model: A model that `keras_vit.export.signatures.check_output` accepts.
    """

    # It is not functional, because constants in functional models become inputs of an ONNX file.

    def __init__(self, model):
        super().__init__(name="from_pixels")
        self.model = model
        self.built = True

    def call(self, images):
        names, function = output_of_signature(self.model, "serving_default")
        return by_name(names, function(self.model, preprocess_input(images, self.model)))


def export_for_runtime(model, file, format, **options):
    """Exports a model with Keras's exporter, with operations that the runtimes recognise."""
    import tensorflow as tf

    with exportable_operations(tf.matmul):
        # A model that was never called needs an input signature.
        model.export(file, format=format, verbose=False, input_signature=[images_of(model)], **options)


def images_of(model):
    """The input signature of a `FromPixels`."""
    return keras.InputSpec(shape=model.model.input_shape, dtype="float32", name="images")
