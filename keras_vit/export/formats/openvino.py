"""OpenVINO files: an `.xml` file, and a `.bin` file with the weights. Keras's exporter writes them."""

import contextlib
import io
import pathlib

from keras_vit.export.formats.exporting import export_textbook


def write(model, file, precision):
    """Writes a model as a file. Keras must run on TensorFlow.

    Args:
        model: An `exporting.FromPixels`.
        file: Path of the `.xml` file.
        precision: `"float32"` or `"float16"`
    """
    import openvino

    exported = str(pathlib.Path(file).with_suffix(".exported.xml"))
    export_textbook(model, exported, "openvino")
    openvino.save_model(openvino.Core().read_model(exported), file, compress_to_fp16=precision == "float16")


def quantize(float_file, file, batches):
    """Writes a file that computes products in 8 bits: post-training quantization of NNCF, settings for transformers.

    Weights have a scale for each output channel. Activations have one scale and zero point each. SmoothQuant (Xiao et
    al., 2022) moves large channels of activations to the weights. Norms, softmax, GELU and the outputs are not
    quantized.

    Args:
        float_file: Path of a float32 file from `write`.
        file: Path of the `.xml` file to write.
        batches: List of arrays (N, H, W, C) that calibrate the ranges, pixels in [0, 255].
    """
    import nncf
    import openvino

    images = [image[None].astype("float32") for batch in batches for image in batch]
    with contextlib.redirect_stdout(io.StringIO()):  # NNCF prints progress bars.
        quantized = nncf.quantize(
            openvino.Core().read_model(float_file),
            nncf.Dataset(images),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(images),
        )
    openvino.save_model(quantized, file, compress_to_fp16=False)


def open_file(file):
    """Returns a function from images to probabilities. Computations are in float32."""
    import openvino

    compiled = openvino.Core().compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda images: compiled(images)["probabilities"]
