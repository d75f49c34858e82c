"""Code in model cards that loads the files. The code must be run in the folder of the card."""

import dataclasses
import json

from keras_vit.preprocessing import vision_model

_OWN_FOLDER = """
import keras_vit

model = keras_vit.from_pretrained(".")
"""
_OWN_FILE = """
import keras_vit

model = keras_vit.from_pretrained({file}, num_heads={num_heads}{grid_size})
"""
_VISION_TRANSFORMER = """
from vit_jax import checkpoint

params = checkpoint.load({file})
"""
_BIG_VISION = """
from big_vision import utils

params = utils.load_checkpoint_np({file})
"""
_TIMM = """
import timm

model = timm.create_model("local-dir:.", pretrained=True).eval()
config = timm.data.resolve_model_data_config(model)
transform = timm.data.create_transform(**config, is_training=False)
"""
_TRANSFORMERS = """
from transformers import AutoImageProcessor, {transformers_class}

model = {transformers_class}.from_pretrained(".")
processor = AutoImageProcessor.from_pretrained(".")
"""
_KERAS_HUB = """
import keras_hub

model = keras_hub.models.{keras_hub_class}.from_preset(".")
"""
_TENSORFLOW = """
import tensorflow as tf

model = tf.saved_model.load(".")
images = tf.stack([tf.io.read_file("photo.jpg")])
answers = model.signatures["serving_default"](image_bytes=images)
"""
_ONNX = """
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession({file})
images = np.zeros({shape}, "float32")  # Pixels from 0 to 255.
[probabilities] = session.run(["probabilities"], {{"images": images}})
"""
_LITERT = """
import numpy as np
from ai_edge_litert.interpreter import Interpreter

run = Interpreter({file}).get_signature_runner()
images = np.zeros({shape}, "float32")  # Pixels from 0 to 255.
probabilities = run(images=images)["probabilities"]
"""
_OPENVINO = """
import numpy as np
import openvino

model = openvino.Core().compile_model({file})
images = np.zeros({shape}, "float32")  # Pixels from 0 to 255.
probabilities = model(images)["probabilities"]
"""


@dataclasses.dataclass(frozen=True)
class CardFormat:
    """Describes a format of files, and the program that loads these files.

    Args:
        title: Name of the program.
        library: The program's `library_name` on the Hugging Face Hub.
        code: Template of the code with which the program loads the files.
        own_code: Template of the code with which keras_vit loads the files, or `None` if keras_vit cannot load them.
        preprocessing: Text that says which steps of the preprocessing are part of the exported model.
    """

    title: str
    library: str
    code: str
    own_code: str | None = None
    preprocessing: str = ""


_NORMALISES = "The file does the last step itself. It takes pixels from 0 to 255."
_DOES_ALL = "The SavedModel does all steps itself. It takes encoded images."
CARD_FORMATS = {
    "vision_transformer": CardFormat("vision_transformer", "vision_transformer", _VISION_TRANSFORMER, _OWN_FILE),
    "big_vision": CardFormat("big_vision", "big_vision", _BIG_VISION, _OWN_FILE),
    "timm": CardFormat("timm", "timm", _TIMM, _OWN_FOLDER),
    "huggingface": CardFormat("transformers", "transformers", _TRANSFORMERS, _OWN_FOLDER),
    "keras_hub": CardFormat("KerasHub", "keras-hub", _KERAS_HUB, _OWN_FOLDER),
    "saved_model": CardFormat("TensorFlow", "tensorflow", _TENSORFLOW, preprocessing=_DOES_ALL),
    "onnx": CardFormat("ONNX Runtime", "onnx", _ONNX, preprocessing=_NORMALISES),
    "litert": CardFormat("LiteRT", "litert", _LITERT, preprocessing=_NORMALISES),
    "openvino": CardFormat("OpenVINO", "openvino", _OPENVINO, preprocessing=_NORMALISES),
}


def loading_code(model, config, format, file, classes, transformers_class):
    """Returns the section of a model card that shows how to load the files, in Markdown.

    `config` is the architecture of the model. `format` is a key of `CARD_FORMATS`. The other arguments are the same as
    in `model_cards.model_card`.
    """
    vision = vision_model(model)
    positions = next((layer for layer in vision.layers if layer.name == "position_embedding"), None)
    grid_size = getattr(positions, "grid_size", None)
    _, height, width, channels = vision.input_shape
    values = {
        "file": json.dumps(file, ensure_ascii=False),
        "num_heads": getattr(config, "num_heads", None),
        "grid_size": "" if grid_size is None else f", grid_size={tuple(grid_size)}",
        "transformers_class": transformers_class,
        "keras_hub_class": "Backbone" if classes is None else "ImageClassifier",
        "shape": (1, height or 224, width or 224, channels),
    }
    entry = CARD_FORMATS[format]
    own = "keras_vit cannot load these files. It loads the `.keras` file of the model."
    if entry.own_code:
        own = f"In keras_vit:\n\n```python{entry.own_code.format(**values)}```"
    return f"In {entry.title}:\n\n```python{entry.code.format(**values)}```\n\n{own}"
