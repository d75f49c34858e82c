"""The ResNet of ViT's hybrids in NumPy, float64, after `models_resnet.py` of google-research/vision_transformer.

Legend: x maps (B, H, W, C); w kernel (k, k, C, F), or the weights of a part by name; s stride; G groups; gamma, beta
(C,). The padding is TensorFlow's "SAME".
"""

import numpy as np

from tests.reference.vit import part


def windows(x, k, s, fill):
    """(B, h, w, C, k, k): the k x k surroundings that each place of the output sees."""
    padding = [(0, 0)]
    for size in x.shape[1:3]:
        total = max((-(-size // s) - 1) * s + k - size, 0)
        padding.append((total // 2, total - total // 2))
    padded = np.pad(x, [*padding, (0, 0)], constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, (k, k), axis=(1, 2))[:, ::s, ::s]


def std_conv(x, w, s=1, epsilon=1e-5):
    w = (w - w.mean((0, 1, 2))) / (w.std((0, 1, 2)) + epsilon)
    return np.einsum("bhwcij,ijcf->bhwf", windows(x, len(w), s, 0.0), w, optimize=True)


def group_norm(x, gamma, beta, epsilon=1e-6, G=32):
    B, H, W, C = x.shape
    grouped = x.reshape(B, H, W, G, C // G)
    mean = grouped.mean((1, 2, 4), keepdims=True)
    variance = ((grouped - mean) ** 2).mean((1, 2, 4), keepdims=True)
    return ((grouped - mean) / np.sqrt(variance + epsilon)).reshape(x.shape) * gamma + beta


def relu(x):
    return np.maximum(x, 0)


def conv_norm(x, w, conv, norm, s=1, epsilon=1e-6, std_epsilon=1e-5):
    y = std_conv(x, w[f"{conv}/kernel"], s, std_epsilon)
    return group_norm(y, w[f"{norm}/gamma"], w[f"{norm}/beta"], epsilon)


def bottleneck_unit(x, w, s=1, **epsilons):
    y = relu(conv_norm(x, w, "conv_1", "norm_1", **epsilons))
    y = relu(conv_norm(y, w, "conv_2", "norm_2", s, **epsilons))
    y = conv_norm(y, w, "conv_3", "norm_3", **epsilons)
    if "projection_conv/kernel" in w:
        x = conv_norm(x, w, "projection_conv", "projection_norm", s, **epsilons)
    return relu(x + y)


def bit_resnet(x, w, stage_depths, **epsilons):
    x = relu(conv_norm(x, w, "stem_conv", "stem_norm", 2, **epsilons))
    x = windows(x, 3, 2, -np.inf).max((-1, -2))
    for stage, depth in enumerate(stage_depths):
        for unit in range(depth):
            s = 2 if stage > 0 and unit == 0 else 1
            x = bottleneck_unit(x, part(w, f"stem_stage_{stage}_unit_{unit}"), s, **epsilons)
    return x
