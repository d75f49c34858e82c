"""Adapts weights from a file to a model with another image size, patch size, number of channels or head.

The functions take and return arrays, not models. Shapes: C channels, D hidden size, P x Q pixels of a patch.
"""

import dataclasses
import math

import numpy as np

from keras_vit.architectures import BiTResNetConfig, ResNetConfig
from keras_vit.architectures.dense import DenseConfig
from keras_vit.architectures.stem import FIRST_KERNELS, ConvStemConfig, StemConfig
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.resampling import resize_grid, resize_patches
from keras_vit.weights.paths import DENSE_HEAD, HEAD, POSITIONS, TRUNK, layer_of

_ADAPTED = {
    *("patch_size", "stem", "crop_to_patches", "token_merging", "representation_dim", "final_norm"),
    *("class_token", "distillation_token", "pooling_num_heads", "pooling_mlp_dim", "pool_prefix_tokens"),
    *("position_embedding", "num_position_prefix_rows", "layer_scale"),
}
"""Fields of `ViTConfig` in which a model may differ from its weights, because weights are adapted or define them"""
_COMPARED_IN_STEMS = {
    StemConfig: ("group_norm_epsilon", "weight_standardization_epsilon"),
    ConvStemConfig: ("convolutions",),
}


@dataclasses.dataclass(frozen=True)
class Target:
    """Description of the model to which weights are adapted.

    Args:
        config: Architecture of a kind that loads published weights.
        shapes: {canonical path: shape} of the model's weights.
        grid_size: (rows, columns) of the position table, or `None` without a table.
        has_variable_size: Whether the model accepts images of any size and interpolates its positions itself.
    """

    config: ViTConfig | BiTResNetConfig | ResNetConfig
    shapes: dict[str, tuple[int, ...]]
    grid_size: tuple[int, int] | None
    has_variable_size: bool = False

    @property
    def image_size(self):
        """(height, width) in pixels of the images that fit the position table, or `None` without a table."""
        stride = self.config.total_stride
        return self.grid_size and tuple(rows * side for rows, side in zip(self.grid_size, stride, strict=True))

    @property
    def first_kernel(self):
        """Path of the kernel that is applied to pixels."""
        return next(path for path in FIRST_KERNELS if path in self.shapes)

    @property
    def classes(self):
        """Number of classes of the head, or `None` without a classifier."""
        if "predictions/kernel" not in self.shapes or self.config.output not in ("classes", "class_map", "objects"):
            return None
        return self.shapes["predictions/kernel"][1] - self.config.num_extra_classes


@dataclasses.dataclass
class Adaptation:
    """Adapted weights and the record of their changes.

    Args:
        weights: {canonical path: array}
        adapted: Same as in `LoadReport`.
        skipped: {canonical path: why the weight was left out}
        initialized: Same as in `LoadReport`.
    """

    weights: dict[str, np.ndarray]
    adapted: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    initialized: list[str] = dataclasses.field(default_factory=list)

    def skip(self, prefixes, reason):
        """Removes the weights with these prefixes. Returns whether any weight was removed."""
        paths = [path for path in self.weights if path.startswith(prefixes)]
        for path in paths:
            del self.weights[path]
            self.skipped[path] = reason
        return bool(paths)

    def leave_out(self, prefix, reason):
        """Removes the weights with a prefix, and records their removal as an adaptation."""
        if self.skip((prefix,), reason):
            self.adapted[prefix.rstrip("/")] = f"left out: {reason}"


def adapt(weights, checkpoint, target, head):
    """Adapts a checkpoint's weights to a model.

    Args:
        weights: {canonical path: array}, as returned by `checkpoint.read()`.
        checkpoint: `Checkpoint`.
        target: `Target`.
        head: Same as in `keras_vit.load_weights`.

    Returns:
        An `Adaptation`. The caller must check that its weights fit the model.

    Raises:
        ValueError: If the model has another kind of stem than the weights.
    """
    adaptation = Adaptation(dict(weights))
    _adapt_head(adaptation, target, head)
    if isinstance(target.config, ViTConfig):
        if isinstance(target.config, DenseConfig):
            _adapt_dense(adaptation, checkpoint.config, target)
        check_stem(checkpoint.config.stem, target.config.stem)
        if head == "reset":
            _adapt_norm(adaptation, target)
        _adapt_pooling(adaptation, checkpoint.config, target)
        _adapt_positions(adaptation, checkpoint, target)
        _adapt_patches(adaptation, target)
        _compare_numerics(adaptation, checkpoint.config, target)
    else:
        if type(target.config) is not type(checkpoint.config):
            _adapt_trunk(adaptation, checkpoint.config, target)
        fields = [field for field in ("stem_pooling_padding", "strides_first") if hasattr(target.config, field)]
        _compare_fields(adaptation, fields, checkpoint.config, target.config)
    _adapt_channels(adaptation, checkpoint.preprocessing, target)
    if checkpoint.preprocessing is None:
        adaptation.adapted["pixels"] = "the file does not define how pixels are normalised; the model's setting remains"
    return adaptation


def check_stem(stem, model_stem):
    """Checks that a model with weights has the weights' kind of stem. Raises ValueError otherwise."""
    if type(stem) is not type(model_stem):
        raise ValueError(
            f"The weights were trained with stem={stem!r}, but the model has stem={model_stem!r}. Build the model with "
            f"the stem of the weights, or train it from scratch."
        )


def _adapt_head(adaptation, target, head):
    if "predictions/kernel" not in target.shapes:
        adaptation.skip((*HEAD, "pre_logits/"), "the model has no head")
    elif head == "reset":
        if adaptation.skip(HEAD, "the head is reset") or "pre_logits/kernel" not in target.shapes:
            adaptation.skip(("pre_logits/",), "the head is reset")  # Without a classifier, it is a pooler.
        for path, shape in target.shapes.items():
            if path.startswith(HEAD) and target.config.output not in ("classes", "class_map"):
                adaptation.initialized.append(path)  # A ReLU after a layer of zeros would have no gradient.
            elif path.startswith(HEAD):
                # A ResNet has no `head_bias`, so the bias of its head starts at zero, like the kernel.
                value = 0.0 if path.endswith("kernel") else getattr(target.config, "head_bias", 0.0)
                adaptation.weights[path] = np.broadcast_to(np.float32(value), shape)
                adaptation.initialized.append(path)


def _adapt_trunk(adaptation, config, target):
    """Removes the weights of stages that the model lacks. Layers that a ResNet lacks keep their initial values."""
    left_out = range(len(target.config.stage_depths), len(config.stage_depths))
    prefixes = tuple(f"stage_{stage}_unit_" for stage in left_out)
    adaptation.skip(prefixes, "the model has tokens in place of the last stage")
    layers = [layer_of(path) for path in target.shapes if not path.startswith((*TRUNK, *HEAD))]
    adaptation.initialized.extend(dict.fromkeys(layers))


def _adapt_dense(adaptation, config, target):
    """Moves the last blocks to the head that contains them. Other layers of a new head keep their initial values."""
    for path in list(adaptation.weights):
        if path not in target.shapes and f"head/{path}" in target.shapes:
            adaptation.weights[f"head/{path}"] = adaptation.weights.pop(path)
    unused = [path for path in adaptation.weights if path.startswith(("encoder_block_", "encoder_norm/"))]
    adaptation.skip(tuple(path for path in unused if path not in target.shapes), "not used by the head")
    if type(config) is not type(target.config):
        missing = [path for path in target.shapes if path not in adaptation.weights]
        new = [path for path in missing if path.startswith((*DENSE_HEAD, "encoder_norm/"))]
        is_whole = not any(path.startswith("head/") for path in adaptation.weights)
        adaptation.initialized.extend(dict.fromkeys(layer_of(path) if is_whole else path for path in new))


def _adapt_norm(adaptation, target):
    """Replaces the norm before the pooling by a new norm after it, as MAE's fine-tuning does (arXiv 2111.06377)."""
    fresh = {path: shape for path, shape in target.shapes.items() if path.startswith("pooled_norm/")}
    if not fresh or not adaptation.weights.keys().isdisjoint(fresh):
        return
    if adaptation.skip(("encoder_norm/",), "replaced by a new norm after the pooling"):
        for path, shape in fresh.items():
            adaptation.weights[path] = np.full(shape, path.endswith("gamma"), "float32")
            adaptation.initialized.append(path)


def _adapt_pooling(adaptation, config, target):
    if target.config.pooling != config.pooling:
        adaptation.leave_out("pooling/", f"the model pools with {target.config.pooling!r}")
    if target.config.pooling is None:
        adaptation.leave_out("pooled_norm/", "the model has no pooling")
    if not target.config.has_class_token:
        adaptation.leave_out("class_token/", "the model has no class token")
        adaptation.leave_out("distillation_token/", "the model has no class token")


def _adapt_positions(adaptation, checkpoint, target):
    paths = [path for path in adaptation.weights if POSITIONS.fullmatch(path)]
    if not paths:
        _compare_fields(adaptation, ["position_embedding"], checkpoint.config, target.config)
    for path in paths:
        if target.config.position_embedding == "learned_1d":
            _adapt_table(adaptation, path, checkpoint, target)
        else:
            adaptation.leave_out(path, f"the model's positions are {target.config.position_embedding!r}")


def _adapt_table(adaptation, path, checkpoint, target):
    table = adaptation.weights[path]
    num_prefix_rows = len(table) - math.prod(checkpoint.grid_size)
    prefix, grid = table[:num_prefix_rows], table[num_prefix_rows:]
    changes = []
    if num_prefix_rows and checkpoint.config.has_class_token and not target.config.has_class_token:
        prefix = prefix[checkpoint.config.num_class_tokens :]
        changes.append("row of the class token left out")
    if target.grid_size != checkpoint.grid_size:
        method = checkpoint.config.position_interpolation
        grid = resize_grid(grid, checkpoint.grid_size, target.grid_size, method)
        changes.append(f"{_by(checkpoint.grid_size)} positions resampled to {_by(target.grid_size)} ({method})")
    if changes:
        adaptation.weights[path] = np.concatenate([prefix, grid])
        adaptation.adapted[path] = ", ".join(changes)


def _adapt_patches(adaptation, target):
    path = "patch_embedding/kernel"
    kernel, shape = adaptation.weights.get(path), target.shapes[path][:2]
    if kernel is not None and kernel.ndim == 4 and kernel.shape[:2] != shape:
        adaptation.weights[path] = resize_patches(kernel, shape)
        adaptation.adapted[path] = f"patches of {_by(kernel.shape)} pixels resized to {_by(shape)} (pseudo-inverse)"


def _adapt_channels(adaptation, preprocessing, target):
    path = target.first_kernel
    kernel, channels = adaptation.weights.get(path), target.shapes[path][2]
    if kernel is None or kernel.ndim != 4 or kernel.shape[2] == channels:
        return
    bias = adaptation.weights.get("patch_embedding/bias")
    if preprocessing and path == "patch_embedding/kernel" and bias is not None and bias.shape == kernel.shape[3:]:
        kernel, shift = _renormalized(kernel, preprocessing, channels)
        adaptation.weights["patch_embedding/bias"] = (bias + shift).astype(bias.dtype)
    adaptation.weights[path] = adapt_channels(kernel, channels)
    note = f"{kernel.shape[2]} input channels made {channels}"
    adaptation.adapted[path] = ", ".join(filter(None, [adaptation.adapted.get(path), note]))


def adapt_channels(kernel, channels):
    """Changes the number C of channels of a kernel (P, Q, C, D). The outputs for gray images do not change.

    If channels are removed, the kernel of each removed channel i is added to the kernel of channel i modulo `channels`.
    If channels are added, channel i gets the kernel of channel i modulo C, divided by the number of copies of that
    kernel. In a hybrid, kernels are standardized in every forward pass, so its outputs are only approximately the same.
    """
    old = kernel.shape[2]
    if channels < old:
        return np.stack([kernel[:, :, i::channels].sum(axis=2) for i in range(channels)], axis=2)
    sources = np.arange(channels) % old
    return (kernel[:, :, sources] / np.bincount(sources)[sources][:, None]).astype(kernel.dtype)


def _renormalized(kernel, preprocessing, channels):
    """Adapts a patch kernel to the means and stds of a model with another number of channels.

    Returns the new kernel, still with the old number of channels, and the amount to add to the bias. The embedding of
    an image whose channels are equal does not change.
    """
    old = kernel.shape[2]
    (mean, new_mean), (std, new_std) = (
        (_by_channel(preprocessing[name], old), _by_channel(preprocessing[name], channels)[np.arange(old) % channels])
        for name in ("mean", "std")
    )
    shift = np.einsum("pqcd,c->d", kernel, (new_mean - mean) / std)
    return (kernel * (new_std / std)[:, None]).astype(kernel.dtype), shift


def _by_channel(values, channels):
    return np.broadcast_to(_for_channels(values, channels), channels)


def adapt_preprocessing(preprocessing, size, file_size, channels):
    """Adapts the preprocessing of a file to a model with another image size or number of channels.

    Args:
        preprocessing: Arguments of `Preprocessing`.
        size: (height, width) of the model's images. A variable side is `None` and is replaced by the file's side.
        file_size: (height, width) of the images for which `preprocessing` is defined. `resize` and `crop` are scaled
            from this size to `size`.
        channels: Number of channels of the model's images. For one channel, means and stds are averaged. For other
            numbers of channels, they are repeated.
    """
    size = tuple(new or old for new, old in zip(size, file_size, strict=True))
    scaled = {
        name: _scaled(preprocessing[name], size, file_size) for name in ("resize", "crop") if preprocessing.get(name)
    }
    return {
        **preprocessing,
        **scaled,
        **{name: _for_channels(preprocessing[name], channels) for name in ("mean", "std")},
    }


def _scaled(sides, size, file_size):
    if size == file_size:
        return sides
    if isinstance(sides, int):
        ratio = sides / min(file_size)
        grown = tuple(round(side * ratio) for side in size)
        # A non-square image gets a fixed height and width. If only the length of its short side were fixed, the image
        # could be smaller than the crop.
        return grown[0] if size[0] == size[1] else grown
    return tuple(round(side * new / old) for side, new, old in zip(sides, size, file_size, strict=True))


def _for_channels(values, channels):
    if not isinstance(values, (tuple, list)) or len(values) == channels:
        return values
    if channels == 1:
        return float(np.mean(values))
    return tuple(values[channel % len(values)] for channel in range(channels))


def _compare_numerics(adaptation, config, target):
    all_fields = dataclasses.fields(config)
    fields = [field.name for field in all_fields if field.metadata["in_files"] and field.name not in _ADAPTED]
    if config.pooling == target.config.pooling:
        fields.append("pool_prefix_tokens")
    if target.has_variable_size:
        fields.append("position_interpolation")
    _compare_fields(adaptation, fields, config, target.config)
    if config.stem is not None and type(config.stem) is type(target.config.stem):
        _compare_fields(adaptation, _COMPARED_IN_STEMS[type(config.stem)], config.stem, target.config.stem)


def _compare_fields(adaptation, fields, source_config, model_config):
    for field in fields:
        source_value, model_value = getattr(source_config, field), getattr(model_config, field)
        is_omitted = field == "pooling" and model_value is None  # The tokens are the same without the pooling.
        if source_value != model_value and not is_omitted:
            adaptation.adapted[field] = f"the weights were made for {source_value!r}, the model has {model_value!r}"


def _by(size):
    return f"{size[0]} x {size[1]}"
