"""keras_vit: Vision Transformers for Keras 3, in the manner of `keras.applications`."""

from keras_vit import layers
from keras_vit.analysis.attention import attention_maps, attention_rollout
from keras_vit.analysis.features import features
from keras_vit.checkpoints import describe, from_pretrained
from keras_vit.config import VARIANTS, StemConfig, ViTConfig
from keras_vit.cost import profile
from keras_vit.export.runtimes import export_model
from keras_vit.export.saved_model import export_saved_model
from keras_vit.label_spaces import decode_predictions
from keras_vit.models import *  # noqa: F403
from keras_vit.models import __all__ as _model_names
from keras_vit.models.freezing import freeze
from keras_vit.models.rematerialization import rematerialize
from keras_vit.preprocessing import Preprocessing, preprocess_input
from keras_vit.weights.catalogue import list_weights
from keras_vit.weights.loading import LoadReport, load_weights
from keras_vit.weights.saving import save_weights

__version__ = "0.1.0"
__all__ = [
    "VARIANTS",
    "LoadReport",
    "Preprocessing",
    "StemConfig",
    "ViTConfig",
    "attention_maps",
    "attention_rollout",
    "decode_predictions",
    "describe",
    "export_model",
    "export_saved_model",
    "features",
    "freeze",
    "from_pretrained",
    "layers",
    "list_weights",
    "load_weights",
    "preprocess_input",
    "profile",
    "rematerialize",
    "save_weights",
    *_model_names,
]
