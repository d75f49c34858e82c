"""The configs of models that predict pixels or objects: a plain Vision Transformer and a head on its blocks."""

import dataclasses
import typing

from keras_vit.architectures.base import check_later, optional, setting
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.checks import check_flag, check_number, check_positive, check_size


@dataclasses.dataclass(frozen=True)
class DenseConfig(ViTConfig):
    """A Vision Transformer without pooling, and a head that reads the outputs of its blocks.

    The fields of `ViTConfig` describe the encoder.

    Args:
        head: Name of the head (a key of `keras_vit.heads.HEADS`) as `name`, and its arguments.

    Class attributes:
        HEADS: Names of the heads that this kind of model can have.

    Raises:
        ValueError: If a value is invalid.
    """

    HEADS: typing.ClassVar[tuple[str, ...]] = ("linear", "dpt")

    head: dict[str, typing.Any] | None = setting(check_later, None, in_files=False)

    def check_combinations(self):
        super().check_combinations()
        if self.pooling is not None or not isinstance(self.head, dict) or "name" not in self.head:
            raise ValueError(
                f"A {self.title} needs pooling=None, and a head such as {{'name': 'linear'}}. Received: "
                f"pooling={self.pooling!r}, head={self.head!r}"
            )

    def encoder(self, **changes):
        """The `ViTConfig` of the encoder alone, with some fields changed."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(ViTConfig)}
        return ViTConfig(**values | changes)

    @classmethod
    def of_encoder(cls, encoder, **fields):
        """The config of a model with the encoder of a `ViTConfig`. Its final LayerNorm is not after a pooling."""
        values = {field.name: getattr(encoder, field.name) for field in dataclasses.fields(ViTConfig)}
        values |= {"pooling": None, "class_token": encoder.has_class_token, "norm_placement": "before_pooling"}
        values |= dict.fromkeys(("representation_dim", "projection_dim", "pooling_num_heads", "pooling_mlp_dim"))
        values["unit_representation"] = False
        return cls(**values | {"pool_prefix_tokens": False, "head_bias": 0.0, "patch_dropout_rate": 0.0} | fields)


@dataclasses.dataclass(frozen=True)
class SegmenterConfig(DenseConfig):
    """A segmenter. A linear or DPT head predicts the classes of pixels, and an EoMT head masks and their classes."""

    kind = "segmenter"
    title = "segmenter"
    output = "class_map"
    loads = ("segmenter", "vit")
    HEADS = ("linear", "dpt", "eomt")

    @property
    def has_queries(self):
        """Whether the model predicts masks and the classes of queries."""
        return self.head is not None and self.head["name"] == "eomt"

    @property
    def num_extra_classes(self):
        return int(self.has_queries)  # The last output means "no object".

    def output_kind(self, name):
        if self.has_queries:
            return "masks" if name == "masks" else "objects"
        return self.output


@dataclasses.dataclass(frozen=True)
class DepthEstimatorConfig(DenseConfig):
    """A depth estimator.

    Args:
        output_dim: Channels of a 3 x 3 convolution with a ReLU before the last layer. `None`: no such convolution.
        num_bins: Number of the last layer's outputs. If there are several, the depth is the mean of depths that are
            evenly spaced from `min_depth` to `max_depth`, with these outputs as weights ("bins").
        activation: `"relu"`, `"exp"`, `"softplus"`, or `"sigmoid"` times `max_depth`.
        offset: Number that is added after the activation. It must be positive for bins with `"relu"`, so that the sum
            of the weights is not zero.
        min_depth, max_depth: Range of the depth in metres. `None`: unlimited.
        upsampling: Factor by which the outputs of the last layer are enlarged before the activation.
        has_sky: Whether the model also predicts where the sky is, and sets the depth of the sky to that of the farthest
            ground (Depth Anything 3).
        is_inverse: Whether the output is an inverse depth of unknown scale and shift. Large values are near.
        focal_length: Focal length for which the output is in metres, in pixels of the image that the model gets, or
            `None`. For a camera of another focal length f, metres are the output times `f / focal_length`. So the
            output itself has no unit (Depth Anything 3).

    Raises:
        ValueError: If a value is invalid.
    """

    kind = "depth_estimator"
    title = "depth estimator"
    output = "depth"
    loads = ("depth_estimator", "vit")

    output_dim: int | None = setting(optional(check_size), None, in_files=False)
    num_bins: int = setting(check_size, 1, in_files=False)
    activation: str = setting(("relu", "exp", "softplus", "sigmoid"), "softplus", in_files=False)
    offset: float = setting(check_number, 0.0, in_files=False)
    min_depth: float | None = setting(optional(check_positive), None, in_files=False)
    max_depth: float | None = setting(optional(check_positive), None, in_files=False)
    upsampling: int = setting(check_size, 1, in_files=False)
    has_sky: bool = setting(check_flag, False, in_files=False)
    is_inverse: bool = setting(check_flag, False, in_files=False)
    focal_length: float | None = setting(optional(check_positive), None, in_files=False)

    def check_combinations(self):
        super().check_combinations()
        has_bins, smallest, largest = self.num_bins > 1, self.min_depth, self.max_depth
        if self.activation == "sigmoid" and largest is None:
            raise ValueError("activation='sigmoid' needs max_depth, the largest depth in metres.")
        if has_bins and not (smallest and largest and smallest < largest):
            raise ValueError(f"num_bins > 1 needs min_depth < max_depth. Received: {smallest} and {largest}")
        if has_bins and (self.offset < 0 or (self.activation == "relu" and self.offset == 0)):
            raise ValueError(f"Weights of bins must be positive. Set offset=0.001. Received: offset={self.offset}")

    @property
    def units(self):
        """Unit of the depth, or `None` if its scale is unknown or depends on the focal length of the camera."""
        return None if self.is_inverse or self.max_depth is None or self.focal_length else ["metres"]


@dataclasses.dataclass(frozen=True)
class NormalEstimatorConfig(DenseConfig):
    """A model that predicts the surface normal of each pixel, a unit vector."""

    kind = "normal_estimator"
    title = "estimator of surface normals"
    output = "normals"
    loads = ("normal_estimator", "vit")


@dataclasses.dataclass(frozen=True)
class DetectorConfig(DenseConfig):
    """A detector. A box head predicts a box of each patch, and detection tokens one box each."""

    kind = "detector"
    title = "detector"
    output = "objects"
    loads = ("detector", "vit")
    HEADS = ("box", "detection_tokens")

    @property
    def num_detection_tokens(self):
        return (self.head or {}).get("num_tokens", 0)

    @property
    def has_detection_tokens(self):
        """Whether the boxes are those of detection tokens, and not those of patches."""
        return self.num_detection_tokens > 0

    @property
    def num_extra_classes(self):
        return int(self.has_detection_tokens)  # The last output means "no object".

    def output_kind(self, name):
        if name == "boxes":
            return name
        return "objects" if self.has_detection_tokens else "object_labels"
