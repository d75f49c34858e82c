"""Sizes of published files for which `keras_vit.VARIANTS` has no variant."""

import collections
import types

from keras_vit.architectures.vision_transformer import VARIANTS, ViTConfig

# variant: (patch size, hidden_dim, num_layers, num_heads, mlp_dim)
_SIZES = {
    # The FlexiViT paper's baseline (arXiv 2212.08013).
    "B/30": (30, 768, 12, 12, 3072),
    # DINOv2 (arXiv 2304.07193) and LingBot-Vision.
    "g-swiglu/14": (14, 1536, 40, 24, 4096),
    "g-swiglu/16": (16, 1536, 40, 24, 4096),
    # DINOv3 (arXiv 2508.10104).
    "S+/16": (16, 384, 12, 6, 1536),
    "H+/16": (16, 1280, 32, 20, 5120),
    "7B/16": (16, 4096, 40, 32, 8192),
    # EVA-02 (arXiv 2303.11331) and EVA-02-CLIP (arXiv 2303.15389).
    "Ti/14": (14, 192, 12, 3, 512),
    "E/14": (14, 1792, 64, 16, 15360),
    # Perception Encoder (arXiv 2504.13181). The paper's G is not the G of Scaling Vision Transformers.
    "G-pe/14": (14, 1536, 50, 16, 8960),
    # I-JEPA (arXiv 2301.08243).
    "g/16": (16, 1408, 40, 16, 6144),
    # OpenCLIP and TinyCLIP (arXiv 2309.12314).
    "B+/16": (16, 896, 12, 14, 3584),
    "xsmall/16": (16, 256, 10, 4, 1024),
    "M/32": (32, 512, 12, 8, 2048),
    "betwixt/32": (32, 640, 12, 10, 2560),
    # timm's own sizes.
    "wee/16": (16, 256, 14, 4, 1280),
    "little/16": (16, 320, 14, 5, 1792),
    "mediumd/16": (16, 512, 20, 8, 2048),
    "betwixt/16": (16, 640, 12, 10, 2560),
    "So150m/16": (16, 896, 18, 14, 2304),
    "So150m2/16": (16, 832, 21, 13, 2176),
}
_FILES_ONLY = {name: ViTConfig(*size) for name, size in _SIZES.items()}
PUBLISHED_VARIANTS = types.MappingProxyType(collections.ChainMap(_FILES_ONLY, VARIANTS))
"""{variant of a catalogue entry: its `ViTConfig`}: `keras_vit.VARIANTS`, and sizes that only published files have"""
