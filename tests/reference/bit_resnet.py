"""The ResNet of ViT's hybrids in NumPy, float64, after `models_resnet.py` of google-research/vision_transformer.

Also BiT (arXiv 1912.11370), after section 3.1 and the settings in `bit_paper.py` of google-research/big_vision. The
stem pads its pooling with zeros, as in big_transfer, which trained the models, or with -inf, as in big_vision.

Legend: x maps (B, H, W, C); w kernel (k, k, C, F), or weights of a part by name; s stride; G groups; gamma, beta
(C,). The padding is TensorFlow's "SAME", and for BiT k // 2 on all sides.
"""

import numpy as np

from tests.reference.vit import part


def windows(x, k, s, fill):
    """(B, h, w, C, k, k): the k x k neighbourhood of each output position."""
    padding = [(0, 0)]
    for size in x.shape[1:3]:
        total = max((-(-size // s) - 1) * s + k - size, 0)
        padding.append((total // 2, total - total // 2))
    padded = np.pad(x, [*padding, (0, 0)], constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, (k, k), axis=(1, 2))[:, ::s, ::s]


def windows_of_bit(x, k, s, fill=0.0):
    """The same, padded by k // 2 on all sides."""
    padded = np.pad(x, [(0, 0), (k // 2, k // 2), (k // 2, k // 2), (0, 0)], constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, (k, k), axis=(1, 2))[:, ::s, ::s]


def std_conv_of_bit(x, w, s=1, epsilon=1e-10):
    w = (w - w.mean((0, 1, 2))) / np.sqrt(w.var((0, 1, 2)) + epsilon)
    return np.einsum("bhwcij,ijcf->bhwf", windows_of_bit(x, len(w), s), w, optimize=True)


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


def norm_relu(x, w, norm):
    return relu(group_norm(x, w[f"{norm}/gamma"], w[f"{norm}/beta"], 1e-5))


def pre_activation_unit(x, w, s=1):
    a = norm_relu(x, w, "norm_1")
    y = std_conv_of_bit(a, w["conv_1/kernel"])
    y = std_conv_of_bit(norm_relu(y, w, "norm_2"), w["conv_2/kernel"], s)
    y = std_conv_of_bit(norm_relu(y, w, "norm_3"), w["conv_3/kernel"])
    if "projection_conv/kernel" in w:
        x = std_conv_of_bit(a, w["projection_conv/kernel"], s)
    return x + y


def bit_resnet_logits(x, w, stage_depths, root_fill=0.0):
    """Logits of a whole BiT-ResNet. The stem pads its pooling with `root_fill`."""
    x = std_conv_of_bit(x, w["stem_conv/kernel"], 2)
    x = windows_of_bit(x, 3, 2, root_fill).max((-1, -2))
    for stage, depth in enumerate(stage_depths):
        for unit in range(depth):
            s = 2 if stage > 0 and unit == 0 else 1
            x = pre_activation_unit(x, part(w, f"stage_{stage}_unit_{unit}"), s)
    x = norm_relu(x, w, "final_norm").mean((1, 2))
    return x @ w["predictions/kernel"] + w["predictions/bias"]
