"""Hybrids, a ResNet stem before a Transformer: one function for each published size.

Hybrids are from ViT (arXiv 2010.11929), section 3.1. R50 and R26 are stems. Names end with the stride of the tokens.
The only exception is RViTTi16, whose stride is 32.
"""

import functools

from keras_vit.models.vit import published

_hybrid = functools.partial(published, module=__name__)

RViTTi16 = _hybrid("RViTTi16", "R+Ti/16")
R26ViTS32 = _hybrid("R26ViTS32", "R26+S/32")
R26ViTB32 = _hybrid("R26ViTB32", "R26+B/32")
R50ViTB16 = _hybrid("R50ViTB16", "R50+B/16")
R50ViTB32 = _hybrid("R50ViTB32", "R50+B/32")
R50ViTL16 = _hybrid("R50ViTL16", "R50+L/16")
R50ViTL32 = _hybrid("R50ViTL32", "R50+L/32")

__all__ = ["R26ViTB32", "R26ViTS32", "R50ViTB16", "R50ViTB32", "R50ViTL16", "R50ViTL32", "RViTTi16"]
