"""keras_vit: Vision Transformers for Keras 3, in the manner of `keras.applications`."""

from keras_vit import layers
from keras_vit.config import VARIANTS, ViTConfig
from keras_vit.cost import profile
from keras_vit.export import export_saved_model
from keras_vit.models import *  # noqa: F403
from keras_vit.models import __all__ as _model_names
from keras_vit.preprocessing import Preprocessing, decode_predictions, preprocess_input

__version__ = "0.1.0"
__all__ = [
    "VARIANTS",
    "Preprocessing",
    "ViTConfig",
    "decode_predictions",
    "export_saved_model",
    "layers",
    "preprocess_input",
    "profile",
    *_model_names,
]
