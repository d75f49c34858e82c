"""What model cards say about exported files."""

from keras_vit.weights.formats.format import CardFormat

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
_NORMALISES = "The file does the last step itself. It takes pixels from 0 to 255."
_DOES_ALL = "The SavedModel does all steps itself. It takes encoded images."
CARD_FORMATS = {
    "saved_model": CardFormat("TensorFlow", "tensorflow", _TENSORFLOW, preprocessing=_DOES_ALL, computes_in_int8=False),
    "onnx": CardFormat("ONNX Runtime", "onnx", _ONNX, preprocessing=_NORMALISES),
    "litert": CardFormat("LiteRT", "litert", _LITERT, preprocessing=_NORMALISES),
    "openvino": CardFormat("OpenVINO", "openvino", _OPENVINO, preprocessing=_NORMALISES),
}
"""{format: `CardFormat`}"""
