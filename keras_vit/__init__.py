"""keras_vit: Vision Transformers for Keras 3, in the style of `keras.applications`."""

from keras_vit import heads, layers, pretraining
from keras_vit.analysis.attention import (
    attention_entropy,
    attention_maps,
    attention_rollout,
    local_attention_ratio,
    mean_attention_distance,
    query_attention,
)
from keras_vit.analysis.cost import profile
from keras_vit.analysis.embeddings import embedding_filters, position_similarity
from keras_vit.analysis.features import features, nearest_neighbours
from keras_vit.analysis.token_attention import foreground_share, token_entropy, token_lineage, token_maps
from keras_vit.architectures.rotary import RotaryConfig
from keras_vit.architectures.stem import ConvStemConfig, StemConfig
from keras_vit.architectures.text import TextConfig
from keras_vit.architectures.vision_transformer import VARIANTS, ViTConfig
from keras_vit.export.image_text.exporting import export_image_text_model
from keras_vit.export.runtimes import export_model
from keras_vit.export.saved_model import export_saved_model
from keras_vit.heads.windows import class_scores
from keras_vit.label_spaces import decode_predictions
from keras_vit.licences import LicenceWarning
from keras_vit.models import FACTORIES, baselines
from keras_vit.models.axial import *  # noqa: F403
from keras_vit.models.axial_resnet import *  # noqa: F403
from keras_vit.models.bit_resnet import *  # noqa: F403
from keras_vit.models.dense import *  # noqa: F403
from keras_vit.models.encoder_blocks import initialize_attention, rematerialize
from keras_vit.models.freezing import freeze
from keras_vit.models.hybrid import *  # noqa: F403
from keras_vit.models.naflex import naflex_inputs, naflex_model
from keras_vit.models.resnet import *  # noqa: F403
from keras_vit.models.visual_transformer import *  # noqa: F403
from keras_vit.models.vit import *  # noqa: F403
from keras_vit.models.vt_fpn import *  # noqa: F403
from keras_vit.outputs import Output, set_output
from keras_vit.preprocessing import Preprocessing, preprocess_input
from keras_vit.pretrained import describe, from_pretrained
from keras_vit.text.image_text_model import ImageTextModel
from keras_vit.weights.catalogue import list_weights
from keras_vit.weights.loading import LoadReport, load_weights
from keras_vit.weights.model_cards import Evaluation
from keras_vit.weights.saving import save_weights

__version__ = "0.1.0"
__all__ = [
    "VARIANTS",
    "ConvStemConfig",
    "Evaluation",
    "ImageTextModel",
    "LicenceWarning",
    "LoadReport",
    "Output",
    "Preprocessing",
    "RotaryConfig",
    "StemConfig",
    "TextConfig",
    "ViTConfig",
    "attention_entropy",
    "attention_maps",
    "attention_rollout",
    "baselines",
    "class_scores",
    "decode_predictions",
    "describe",
    "embedding_filters",
    "export_image_text_model",
    "export_model",
    "export_saved_model",
    "features",
    "foreground_share",
    "freeze",
    "from_pretrained",
    "heads",
    "initialize_attention",
    "layers",
    "list_weights",
    "load_weights",
    "local_attention_ratio",
    "mean_attention_distance",
    "naflex_inputs",
    "naflex_model",
    "nearest_neighbours",
    "position_similarity",
    "preprocess_input",
    "pretraining",
    "profile",
    "query_attention",
    "rematerialize",
    "save_weights",
    "set_output",
    "token_entropy",
    "token_lineage",
    "token_maps",
    *FACTORIES,
]
