"""Compares the settings of our int8 files with other settings of the same libraries.

Command: make bench-int8-settings ARGS="--weights vit.npz --images photographs"

Agreement and size are measured with trained weights: every sixth image calibrates, and the others are judged, as in
benchmarks/agreement.py. Speed is measured with ViT-S/16 with random weights, and compared with our float32 file of the
same format, in turns. A line of JSON for each setting is added to benchmarks/results/int8_settings.jsonl, with device,
commit and versions. --document writes the table into docs/serving/eight_bits.md. Use a quiet machine.
"""

import argparse
import functools
import pathlib
import shutil
import sys
import tempfile
import types

import numpy as np

from benchmarks.agreement import VERSIONS, agreement, image_paths, split_paths
from benchmarks.provenance import device, in_words, provenance, versions_in_words
from benchmarks.records import add_options, append, markdown_table, newest, put_between, read
from benchmarks.runtimes import SUFFIXES, open_file

KEYS = ("device", "weights", "format", "setting")
"""Keys that identify a line of the results, besides its time."""
OURS = "ours"
_BATCH = 8
_SPEED_IMAGES = 8
"""Number of images that calibrate the model whose speed is measured."""


def _with_nncf(model, float_file, file, batches, **settings):
    import nncf
    import openvino

    images = [image[None].astype("float32") for batch in batches for image in batch]
    quantized = nncf.quantize(
        openvino.Core().read_model(float_file), nncf.Dataset(images), subset_size=len(images), **settings
    )
    openvino.save_model(quantized, file, compress_to_fp16=False)


def _without_smoothing(model, float_file, file, batches):
    import nncf

    alphas = nncf.AdvancedSmoothQuantParameters(matmul=-1)
    parameters = nncf.AdvancedQuantizationParameters(smooth_quant_alphas=alphas)
    _with_nncf(model, float_file, file, batches, model_type=nncf.ModelType.TRANSFORMER, advanced_parameters=parameters)


def _for_transformers(model, float_file, file, batches):
    import nncf

    _with_nncf(model, float_file, file, batches, model_type=nncf.ModelType.TRANSFORMER)


def _unsupported(float_file):
    """Names of the products in an ONNX file whose kernel is no matrix. ONNX Runtime does not run them in 8 bits."""
    import onnx

    graph = onnx.load(float_file).graph
    kernels = {tensor.name for tensor in graph.initializer if len(tensor.dims) > 2}
    return [node.name for node in graph.node if node.op_type == "MatMul" and kernels & set(node.input)]


def _static(model, float_file, file, batches, per_channel):
    from onnxruntime import quantization

    images = iter([{"images": image[None].astype("float32")} for batch in batches for image in batch])
    quantization.quantize_static(
        float_file,
        file,
        types.SimpleNamespace(get_next=lambda: next(images, None)),
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        per_channel=per_channel,
        op_types_to_quantize=["MatMul"],
        nodes_to_exclude=_unsupported(float_file),
        extra_options={"MatMulConstBOnly": True, "OpTypesToExcludeOutputQuantization": ["MatMul"]},
    )


def _dynamic(model, float_file, file, batches):
    from onnxruntime import quantization

    quantization.quantize_dynamic(
        float_file,
        file,
        op_types_to_quantize=["MatMul"],
        nodes_to_exclude=_unsupported(float_file),
        weight_type=quantization.QuantType.QInt8,
    )


def _dynamic_range(model, float_file, file, batches):
    import tensorflow as tf

    from keras_vit.export.formats.exporting import FromPixels, images_of

    module = FromPixels(model)
    options = {"verbose": False, "input_signature": [images_of(module)], "optimizations": [tf.lite.Optimize.DEFAULT]}
    module.export(file, format="litert", **options)


def _ours(model, float_file, file, batches, format):
    from keras_vit.export.runtime_formats import FORMATS

    FORMATS[format].quantize(float_file, file, batches)


SETTINGS = {
    "openvino": {
        "NNCF's defaults": _with_nncf,
        "NNCF, for transformers": _for_transformers,
        "NNCF, for transformers, without SmoothQuant": _without_smoothing,
    },
    "onnx": {
        "dynamic": _dynamic,
        "static": functools.partial(_static, per_channel=False),
        "static, a scale for each channel": functools.partial(_static, per_channel=True),
    },
    "litert": {"dynamic range of TensorFlow's converter": _dynamic_range},
}
"""{format: {setting: function (model, float32 file, int8 file, batches) that writes the int8 file}}. Ours are added."""


def _num_bytes(file):
    return sum(part.stat().st_size for part in file.parent.iterdir())


def measure_agreement(model, format, quantize, float_file, folder, calibrating, pixels, expected):
    """Writes an int8 file with trained weights. Returns its agreement with the model and its size in MB."""
    file = folder / f"int8{SUFFIXES[format]}"
    quantize(model, str(float_file), str(file), [calibrating])
    run = open_file(format, str(file))
    starts = range(0, len(pixels), _BATCH)
    answers = np.concatenate([run(pixels[start : start + _BATCH].astype("float32")) for start in starts])
    same, difference, _ = agreement(expected, answers)
    return {"same_class": float(same), "difference": float(difference), "megabytes": _num_bytes(file) / 1e6}


def measure_speed(model, format, quantize, float_file, folder, images):
    """Writes an int8 file of another model. Returns its speed relative to the float32 file, for batches of 1 and 8."""
    from keras_vit.export.calibration import relative_speed

    file = folder / f"int8{SUFFIXES[format]}"
    quantize(model, str(float_file), str(file), [images])
    runs = [open_file(format, str(path)) for path in (float_file, file)]
    return {f"speed_{size}": relative_speed(*runs, images[:size].astype("float32")) for size in (1, _BATCH)}


def measure(weights, paths, formats):
    """Yields the lines of the results."""
    import keras_vit
    from keras_vit.data.decoding import image_decoder
    from keras_vit.export.parity import with_random_head

    model = keras_vit.from_pretrained(weights)
    fast = with_random_head(keras_vit.ViTS16(weights=None, input_shape=model.input_shape[1:]))
    decode = image_decoder(model)
    calibrating, pixels = (np.stack([decode(path.read_bytes()) for path in part]) for part in split_paths(paths))
    expected = model.predict(keras_vit.preprocess_input(pixels.astype("float32"), model), verbose=0)
    common = {"weights": pathlib.Path(weights).name, "images": len(pixels), "device": device()}
    for format in formats:
        with tempfile.TemporaryDirectory() as folder:
            files = [pathlib.Path(folder, f"{name}{SUFFIXES[format]}") for name in ("trained", "fast")]
            for each, file in zip((model, fast), files, strict=True):
                keras_vit.export_model(each, file, format, tolerance=1e-4)
            for setting, quantize in {**SETTINGS[format], OURS: functools.partial(_ours, format=format)}.items():
                new = pathlib.Path(folder, "new")
                new.mkdir()
                row = measure_agreement(model, format, quantize, files[0], new, calibrating, pixels, expected)
                row |= measure_speed(fast, format, quantize, files[1], new, calibrating[:_SPEED_IMAGES])
                shutil.rmtree(new)
                yield common | {"format": format, "setting": setting} | row


def table(rows):
    """Markdown: a row for each line of the results."""
    columns = ["format", "setting", "same class", "mean difference", "MB", "speed, 1 image", "speed, 8 images"]
    body = [
        [
            row["format"],
            row["setting"],
            f"{row['same_class']:.1%}",
            f"{row['difference']:.1e}",
            f"{row['megabytes']:.1f}",
            f"{row['speed_1']:.2f}",
            f"{row['speed_8']:.2f}",
        ]
        for row in rows
    ]
    return markdown_table(columns, body, right=columns[2:]) + "\n"


def main(arguments=None):
    """Measures, prints and saves the results. Returns the exit status of the process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--weights", required=True, metavar="SOURCE", help="a trained model, as in keras_vit.from_pretrained")
    add("--images", required=True, nargs="+", type=pathlib.Path, metavar="FOLDER", help="folders of images")
    add("--formats", nargs="+", default=[*SETTINGS], choices=SETTINGS, help="formats to measure")
    add_options(parser, "bench-int8-settings", "int8_settings")
    options = parser.parse_args(arguments)
    state = provenance()
    for row in measure(options.weights, image_paths(options.images), options.formats):
        append([row | state], options.results)
    rows = newest(read(options.results), KEYS)
    print(table(rows))
    if options.document:
        heading = f"{in_words()}; {versions_in_words(VERSIONS)}"
        title = f"{rows[-1]['weights']}, {rows[-1]['images']} images"
        put_between("bench-int8-settings", f"{heading}. {title}:\n\n{table(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
