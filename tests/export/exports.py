"""Exports that are made once per run and shared by all tests. No test changes them."""

import dataclasses
import json
import os
import shutil

import filelock
import keras

import keras_vit
from keras_vit.export.runtimes import RuntimeFile
from tests.models.tiny import STEM, tiny_model
from tests.test_case import randomize

LABELS = ["ant", "bee", "chien égaré", "dog", "elk", "fox"]
TOP_K = 3


def made_once(tmp_path_factory, name, make):
    """A folder with the files that `make(folder)` writes. One process writes it; all processes of the run read it."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # Each worker of pytest-xdist has its own folder in it.
    folder, unfinished = base / name, base / f"unfinished-{name}"
    with filelock.FileLock(f"{folder}.lock"):
        if not folder.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder


def meta_graph(folder):
    """The MetaGraphDef of a SavedModel: its graph and its signatures."""
    from tensorflow.core.protobuf import saved_model_pb2

    [graph] = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes()).meta_graphs
    return graph


def pets():
    """A ViT with 8 x 12 patches that takes pixels in [0, 255]."""
    config = keras_vit.ViTConfig(patch_size=(2, 2), hidden_dim=12, num_layers=2, num_heads=3, mlp_dim=20)
    arguments = {"input_shape": (16, 24, 3), "classes": len(LABELS), "include_preprocessing": True}
    return randomize(keras_vit.ViT(config, **arguments), scale=0.5)


def logits_of_gray_images():
    """A nested model that normalises outside of the inner model and returns logits."""
    arguments = {"stage_depths": (1,), "width": 4, "include_top": False, "input_shape": (16, 24, 1)}
    backbone = keras_vit.ResNet("R18", **arguments)
    return randomize(keras.Sequential([keras.Input((16, 24, 1)), backbone, keras.layers.Dense(3)]), scale=0.5)


def resnet_of_any_size():
    return randomize(keras_vit.BiTResNet((1,), 32, input_shape=(None, None, 3), classes=5), scale=0.2)


def hybrid():
    changes = {"stem": STEM, "rotary": keras_vit.RotaryConfig("mixed"), "num_register_tokens": 2}
    return randomize(tiny_model(input_shape=(64, 96, 3), classifier_activation="softmax", **changes), scale=0.3)


_ASKED = {"signatures": ("predict_pixels", "serving_default")}
# {name: (function that makes a model, arguments of `export_saved_model`)}
OPTIONS = {
    "compiled in int8": (
        logits_of_gray_images,
        {"precision": "int8", "jit_compile": True, "batch_sizes": (2, 5), **_ASKED},
    ),
    "int8 of any size": (resnet_of_any_size, {"precision": "int8", "image_size": (33, 46), **_ASKED}),
    "hybrid in bfloat16": (hybrid, {"precision": "bfloat16"}),
}


def export_pets(tmp_path_factory):
    """The model, and the folder of version 1 of "pets"."""
    model = pets()

    def make(folder):
        keras_vit.export_saved_model(model, folder / "pets", labels=LABELS, top_k=TOP_K, card=True)

    return model, made_once(tmp_path_factory, "export", make) / "pets" / "1"


def export_option(tmp_path_factory, name):
    """The model, and the folder of its export with one of `OPTIONS`."""
    build, options = OPTIONS[name]
    model = build()

    def make(folder):
        assert keras_vit.export_saved_model(model, str(folder), **options) == folder / "1"

    return model, made_once(tmp_path_factory, f"export-{name}", make) / "1"


def save_pixel_signature(model, folder, jit_compile=False, image_size=None, batch_sizes=(1, 8)):
    """Writes a SavedModel with the signature for pixels only. Signatures with decoders take longer to write."""
    import tensorflow as tf

    from keras_vit.export.functions import build_signatures

    name = "predict_pixels_float"
    options = {"jit_compile": jit_compile, "image_size": image_size, "batch_sizes": list(batch_sizes)}
    served = build_signatures(model, [], [name], **options, labels=list("abcde"), top_k=5, max_image_pixels=1000)
    module = tf.Module()
    module.weights = [variable.value for variable in model.variables]
    tf.saved_model.save(module, str(folder), signatures={name: served[name].get_concrete_function()})


def plain():
    """A model with norms and exact GELUs, for runtimes that have kernels for them."""
    sizes = {"patch_size": 4, "hidden_dim": 32, "num_layers": 2, "num_heads": 2, "mlp_dim": 64}
    config = keras_vit.ViTConfig(**sizes, mlp="gelu_exact")
    # Runtimes leave out operations with zero weights.
    return randomize(keras_vit.ViT(config, input_shape=(12, 8, 3), classes=5, classifier_activation=None), scale=0.3)


def rotary(input_shape=(12, 15, 3)):
    """A model with axial rotary positions, registers and inner norms, and without key biases."""
    changes = {"rotary": keras_vit.RotaryConfig(layout="interleaved"), "qkv_bias": "no_key", "num_register_tokens": 2}
    changes |= {"attention_inner_norm": True, "mlp_inner_norm": True, "mlp": "swiglu", "position_embedding": "none"}
    return randomize(tiny_model(input_shape, hidden_dim=24, classifier_activation="softmax", **changes), scale=0.4)


def multi_label():
    """A model with mixed rotary positions, attention pooling of all tokens and a sigmoid."""
    changes = {"rotary": keras_vit.RotaryConfig("mixed", coordinates="grid", axis_order="xy"), "mlp": "gelu_exact"}
    changes |= {"pooling": "map", "norm_placement": "after_pooling", "class_token": True, "pool_prefix_tokens": True}
    changes |= {"pooling_num_heads": 2, "pooling_mlp_dim": 28}
    return randomize(tiny_model(num_layers=1, classifier_activation="sigmoid", **changes), scale=0.4)


def gray_of_any_size():
    """A hybrid with sine positions and axial rotary positions that crops images to whole patches."""
    rotary = keras_vit.RotaryConfig("axial", 10.0, "interleaved", "grid", (5, 4), 0.5)
    changes = {"position_embedding": "sincos_2d", "crop_to_patches": True, "patch_size": (2, 1), "rotary": rotary}
    stem = keras_vit.StemConfig(stage_depths=(1,), width=32)
    return randomize(tiny_model(num_layers=1, input_shape=(None, None, 1), stem=stem, **changes))


# {format: (function that makes a model, file name, image sizes)}
FILES = {
    "onnx": (plain, "tiny.v2.onnx", [(12, 8)]),
    "litert": (multi_label, "tiny.v2.tflite", [(8, 9)]),
    "openvino": (gray_of_any_size, "tiny.v2.xml", [(19, 22), (16, 9)]),
}


def export_file(tmp_path_factory, format, **options):
    """The model, and the `RuntimeFile` of its file, for one of `FILES`."""
    build, name, _ = FILES[format]
    model = build()

    def make(folder):
        written = keras_vit.export_model(model, str(folder / "3" / name), format, card=True, **options)
        assert written.path == folder / "3" / name
        (folder / "written.json").write_text(json.dumps(dataclasses.asdict(written) | {"path": None}))

    folder = made_once(tmp_path_factory, f"file-{format}", make)
    fields = json.loads((folder / "written.json").read_text()) | {"path": folder / "3" / name}
    return model, RuntimeFile(**fields)
