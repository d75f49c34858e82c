"""LiteRT files. Keras's exporter writes them."""

import typing

from keras_vit.export.formats.exporting import images_of


def write(model, file, precision):
    """Writes a model as a file. Keras must run on TensorFlow.

    Args:
        model: An `exporting.FromPixels`.
        file: Path of the file.
        precision: `"float32"` or `"float16"`
    """
    import tensorflow as tf

    options: dict[str, typing.Any] = {}
    if precision == "float16":
        options = {"optimizations": [tf.lite.Optimize.DEFAULT], "target_spec": {"supported_types": [tf.float16]}}
    model.export(file, format="litert", verbose=False, input_signature=[images_of(model)], **options)


def open_file(file):
    """Returns a function from images to the model's outputs, {name: array}."""
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(file).get_signature_runner()
    return lambda images: run(images=images)
