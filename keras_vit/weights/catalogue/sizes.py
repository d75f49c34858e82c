"""Sizes of published files for which `keras_vit.VARIANTS` has no variant."""

import collections
import types

from keras_vit.architectures.vision_transformer import VARIANTS, ViTConfig
from keras_vit.weights.catalogue.tables import read_table

_SIZES = ("patch_size", "hidden_dim", "num_layers", "num_heads", "mlp_dim")
_FILES_ONLY = {
    row["name"]: ViTConfig(**{size: row[size] for size in _SIZES}) for row in read_table("sizes.tsv", _SIZES)
}
PUBLISHED_VARIANTS = types.MappingProxyType(collections.ChainMap(_FILES_ONLY, VARIANTS))
"""{variant of a catalogue entry: its `ViTConfig`}: `keras_vit.VARIANTS`, and sizes that only published files have"""
