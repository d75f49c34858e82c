"""Pre-training without labels: models that train the encoder of a Vision Transformer on images only."""

from keras_vit.pretraining.mae import MaskedAutoencoder
from keras_vit.pretraining.masked_patch_prediction import MaskedPatchPrediction

__all__ = ["MaskedAutoencoder", "MaskedPatchPrediction"]
