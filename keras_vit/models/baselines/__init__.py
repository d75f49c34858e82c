"""`keras_vit.baselines`: the baselines of Visual Transformers (arXiv 2006.03677, Table 8)."""

from keras_vit.models.baselines import attention_resnets, self_attention_network
from keras_vit.models.baselines.attention_resnets import *  # noqa: F403
from keras_vit.models.baselines.self_attention_network import *  # noqa: F403

__all__ = [*attention_resnets.__all__, *self_attention_network.__all__]
