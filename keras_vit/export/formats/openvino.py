"""OpenVINO files: an `.xml` file, and a `.bin` file with the weights. Keras's exporter writes them."""

import pathlib

from keras_vit.export.formats.exporting import export_for_runtime


def write(model, file, precision):
    """Writes a model as a file. Keras must run on TensorFlow.

    Args:
        model: An `exporting.FromPixels`.
        file: Path of the `.xml` file.
        precision: `"float32"` or `"float16"`
    """
    import openvino

    exported = str(pathlib.Path(file).with_suffix(".exported.xml"))
    export_for_runtime(model, exported, "openvino")
    openvino.save_model(openvino.Core().read_model(exported), file, compress_to_fp16=precision == "float16")


def compiled_in_float32(model):
    """Compiles a model of OpenVINO, or the file at a path."""
    import openvino

    return openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def open_file(file):
    """Returns a function from images to the model's outputs, {name: array}. Computations are in float32."""
    compiled = compiled_in_float32(file)
    return lambda images: {output.any_name: array for output, array in compiled(images).items()}
