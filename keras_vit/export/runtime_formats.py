"""The formats of `export_model`: who writes, opens and quantizes their files."""

import dataclasses
import types
from collections.abc import Callable

from keras_vit.export.formats import litert, onnx, openvino
from keras_vit.export.int8 import litert as int8_litert
from keras_vit.export.int8 import onnx as int8_onnx
from keras_vit.export.int8 import openvino as int8_openvino


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of files."""

    suffixes: tuple  # The path that is passed to `export_model` has the last suffix.
    packages: tuple  # Packages that write and run the file.
    module: types.ModuleType  # Has the functions `write` and `open_file`.
    quantize: Callable  # Function (float32 file, int8 file, images that calibrate) that writes an int8 file.
    precisions: tuple = ("float32", "float16", "int8")
    int8_packages: tuple = ()  # Further packages that write int8 files.
    is_one_message: bool = True  # Whether the size of the file is limited to 2 GiB.


FORMATS = {
    "onnx": Format(
        suffixes=(".onnx",),
        precisions=("float32", "int8"),
        packages=("onnx", "onnxruntime", "tf2onnx"),
        module=onnx,
        quantize=int8_onnx.quantize,
    ),
    "litert": Format(
        suffixes=(".tflite",),
        packages=("ai_edge_litert",),
        module=litert,
        quantize=int8_litert.quantize,
    ),
    "openvino": Format(
        suffixes=(".bin", ".xml"),
        packages=("openvino", "scipy"),  # Keras's exporter imports SciPy.
        int8_packages=("nncf",),
        is_one_message=False,
        module=openvino,
        quantize=int8_openvino.quantize,
    ),
}
