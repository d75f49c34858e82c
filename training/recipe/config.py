"""The sections and fields of a recipe, as frozen dataclasses that pydantic checks.

`python -m training train RECIPE --show` prints the description of each field.
"""

from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from keras_vit.architectures.text import TextConfig
from keras_vit.architectures.vision_transformer import ViTConfig, get_variant
from keras_vit.heads import HEADS
from keras_vit.layers import PatchEmbedding
from training.recipe.consistency import TASK_FIELDS, check_recipe, refuse_unused
from training.recipe.images import Augment, Data
from training.recipe.model_functions import build_head, check_function
from training.recipe.section import Duration, Fraction, section

_VARIANT_OR_FIELDS = pydantic.BeforeValidator(lambda value: get_variant(value) if isinstance(value, str) else value)


@section
class Model:
    """The model to train. Its inputs are pixels from 0 to 255, which it normalises itself."""

    config: Annotated[ViTConfig | None, _VARIANT_OR_FIELDS] = Field(
        None, description="to train from scratch: a published variant such as B/16, or fields of keras_vit.ViTConfig"
    )
    weights: str | None = Field(
        None, description="to fine-tune: catalogue name, path or address (hf://, https://) of published weights"
    )
    changes: Annotated[dict[str, Any], pydantic.AfterValidator(ViTConfig.read_fields)] = Field(
        {}, description="with weights: fields of keras_vit.ViTConfig to change, such as drop_path_rate"
    )
    encoder: str | None = Field(
        None,
        description="to train a head on an encoder: catalogue name, path or address of a Vision Transformer with "
        "weights",
    )
    head: Literal[*HEADS] | None = Field(  # type: ignore[valid-type]
        None,
        description="with encoder or config, for outputs of each pixel: linear, dpt or eomt (queries, each with a mask "
        "and a class); with weights and task=segmentation: eomt, if it is their head",
    )
    head_arguments: dict[str, Any] = Field({}, description="with head: arguments of keras_vit.heads, such as features")
    train_encoder: bool = Field(
        False,
        description="with encoder: whether the encoder is trained, too; if not, its features are computed once and "
        "kept on disk",
    )
    train_last_blocks: bool = Field(
        True, description="with head=eomt on a frozen encoder: whether the head's copy of the last blocks is trained"
    )
    function: str | None = Field(
        None, description="to train another architecture from scratch: a function of keras_vit such as BiTResNet"
    )
    arguments: dict[str, Any] = Field(
        {},
        description="with function: arguments of this function, such as stage_depths and width of BiTResNet; with "
        "encoder and task=depth: arguments of keras_vit.DepthEstimator, such as max_depth",
    )
    input_shape: tuple[PositiveInt, PositiveInt, Literal[1, 3]] | None = Field(
        None, description="height, width, channels (3, or 1 for gray); none: those of the weights, or 224,224,3"
    )
    resize: PositiveInt | None = Field(
        None,
        description="from scratch: images are resized so that the short side has this many pixels, then the centre is "
        "cropped (augment.crop replaces this in training); none: the whole image is resized to input_shape",
    )
    attention_initialization: Literal["random", "mimetic"] = Field(
        "random", description="from scratch: initial attention kernels; mimetic ones learn faster (arXiv 2305.09828)"
    )
    freeze_up_to: str | None = Field(
        None, description="last of the frozen layers, such as encoder_block_5; none: all layers are trained"
    )

    def __post_init__(self):
        if sum(value is not None for value in (self.config, self.weights, self.function, self.encoder)) != 1:
            raise ValueError(
                "exactly one of model.config, model.function, model.weights and model.encoder must be set. The first "
                "two train from scratch, model.weights is fine-tuned, and model.encoder gets a new head. Set the "
                "others to none"
            )
        if self.function is None and (self.head is None or self.weights is not None):
            refuse_unused(self, ["arguments"], "with model.function, or model.head with a new head")
        if self.weights is None:
            refuse_unused(self, ["changes"], "with model.weights")
        self._check_head()
        if self.weights is None:
            self._check_config()
        else:
            refuse_unused(self, ["resize", "attention_initialization"], "without model.weights")
            # Whether the changes fit each other depends on the weights, which are opened later.
            ViTConfig.check_names(self.changes)
            dict(ViTConfig.checked(self.changes))

    def _check_head(self):
        if self.encoder is None:
            refuse_unused(self, ["train_encoder", "train_last_blocks"], "with model.encoder")
        elif self.head is None:
            raise ValueError(f"model.encoder needs model.head, one of {', '.join(HEADS)}")
        if self.encoder is None and self.config is None and (self.weights is None or self.head != "eomt"):
            refuse_unused(self, ["head"], "with model.encoder or model.config")
        if self.head is None or self.weights is not None:
            refuse_unused(self, ["head_arguments"], "with a new model.head")
        else:
            build_head(self.head, self.head_arguments)
        if self.encoder is not None:
            refuse_unused(self, ["resize", "attention_initialization"], "without model.encoder")

    @property
    def has_frozen_encoder(self):
        """Whether a head is trained on the features of a frozen encoder."""
        return self.encoder is not None and not self.train_encoder

    def _check_config(self):
        if self.function is not None:
            check_function(self.function, self.arguments)
        shape = self.input_shape or (224, 224, 3)
        if self.config is not None:
            if self.config.pooling is None and self.head is None:
                raise ValueError("model.config.pooling must not be none: a classifier needs one vector per image")
            if self.config.stem is None:
                patches = PatchEmbedding(self.config.hidden_dim, self.config.patch_size, self.config.crop_to_patches)
                patches.compute_output_shape((None, *shape))  # Checks that the patch size divides the image size.
        if self.resize is not None and self.resize < max(shape[:2]):
            raise ValueError(
                f"model.resize must not be smaller than a side of model.input_shape, {shape[0]} x {shape[1]} pixels. "
                f"Received: {self.resize}"
            )


@section
class Optimizer:
    """The optimizer. Weight decay applies to kernels only, not to biases, norms, positions and tokens."""

    kind: Literal["adamw", "muon", "sgd", "rmsprop"] = Field(
        "adamw", description="AdamW, Muon (stem, patch embedding, classifier, norms and biases: AdamW), SGD, RMSProp"
    )
    learning_rate: Annotated[float, Field(gt=0, le=1000)] = Field(1e-3, description="peak learning rate")
    weight_decay: NonNegativeFloat = Field(0.1, description="each step subtracts weight_decay x learning rate x kernel")
    momentum: Fraction = Field(0.9, description="beta 1 of AdamW (in Muon: 0.9), or momentum of Muon, SGD and RMSProp")
    square_momentum: Fraction | None = Field(
        None, description="beta 2 of AdamW, also within Muon (none: 0.999), or rho of RMSProp (none: 0.9)"
    )
    epsilon: PositiveFloat = Field(1e-8, description="avoids a division by zero in AdamW, Muon and RMSProp")
    clip_norm: PositiveFloat | None = Field(1.0, description="maximum global norm of the gradients; none: no limit")
    layer_decay: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="ratio of a layer's learning rate to the next layer's (arXiv 2106.08254); 1: all are equal"
    )
    ema: Fraction = Field(
        0.0, description="momentum of the moving average that replaces the weights in evaluation and files; 0: none"
    )

    def __post_init__(self):
        if self.kind == "sgd":
            refuse_unused(self, ["square_momentum", "epsilon"], "for optimizer.kind=adamw, muon and rmsprop")


@section
class Schedule:
    """The learning rate over the steps: linear warm-up, then decay. Durations: `5%`, `10000 steps`, `5 epochs`."""

    decay: Literal["cosine", "linear", "exponential", "constant"] = Field(
        "cosine", description="how the learning rate changes after the warm-up"
    )
    warmup: Duration = Field("5%", description="duration of the warm-up to the peak learning rate")
    start: Annotated[float, Field(ge=0, le=1000)] = Field(0.0, description="learning rate at the start of the warm-up")
    end: NonNegativeFloat = Field(0.0, description="for cosine and linear: learning rate at the last step")
    rate: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="for exponential: factor by which the learning rate is multiplied"
    )
    every: Duration | None = Field(None, description="for exponential: interval between these multiplications")

    def __post_init__(self):
        is_exponential = self.decay == "exponential"
        if is_exponential != (self.rate is not None) or is_exponential != (self.every is not None):
            raise ValueError(
                "schedule.rate and schedule.every must be set for schedule.decay=exponential, and none for other decays"
            )
        if self.decay not in ("cosine", "linear"):
            refuse_unused(self, ["end"], "for schedule.decay=cosine and linear")


@section
class Fit:
    """How the model is fitted. Durations: `5%` of all steps, `10000 steps`, `5 epochs`."""

    epochs: PositiveInt | None = Field(None, description="passes over the training images")
    steps: PositiveInt | None = Field(None, description="instead of epochs: number of optimizer steps")
    batch_size: PositiveInt = Field(description="number of images in a step, on all devices together")
    accumulation_steps: PositiveInt = Field(
        1, description="number of parts of a batch, to save memory; only batch norms change the result"
    )
    loss: Literal["softmax", "sigmoid"] = Field(
        "softmax",
        description="softmax or sigmoid after the last layer; the loss is the cross-entropy of the result; for "
        "contrastive: as in CLIP or SigLIP",
    )
    label_smoothing: Fraction = Field(0.0, description="label probability that is spread evenly over all classes")
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = Field(
        "float32", description="precision of the computation; weights are always float32"
    )
    rematerialize: bool = Field(
        False, description="recompute the encoder blocks' activations in the backward pass, to save memory"
    )
    report_every: Duration = Field("1 epoch", description="interval of validations, checkpoints and history rows")
    checkpoint_every: Duration | None = Field(None, description="interval of extra checkpoints; none: no extra ones")
    final_weights: Literal["last", "best"] = Field(
        "last", description="weights to save: the last ones, or those with the best validation accuracy or mean IoU"
    )

    def __post_init__(self):
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"exactly one of fit.epochs and fit.steps must be set. "
                f"Received: epochs={self.epochs}, steps={self.steps}"
            )
        if self.batch_size % self.accumulation_steps:
            raise ValueError(
                f"fit.batch_size must be a multiple of fit.accumulation_steps. Received: {self.batch_size} and "
                f"{self.accumulation_steps}"
            )


@section
class Distillation:
    """Distillation: the model learns from a teacher's predictions and the labels (arXiv 1503.02531)."""

    teacher: str | None = Field(
        None, description="folder of a run, .keras file or published weights, with the same classes; none: no teacher"
    )
    weight: Annotated[float, Field(gt=0, le=1)] = Field(
        0.8, description="weight w in the loss: w x teacher loss + (1 - w) x label loss"
    )
    temperature: PositiveFloat = Field(1.0, description="number that divides the logits of teacher and student")

    def __post_init__(self):
        if self.teacher is None:
            refuse_unused(self, ["weight", "temperature"], "with distillation.teacher")


@section
class Pretraining:
    """Pre-training without labels, for task=pretraining: the model predicts hidden patches of its images."""

    method: Literal["masked_patch_prediction", "mae"] = Field(
        "masked_patch_prediction",
        description="masked patch prediction (arXiv 2010.11929, B.1.2) or a masked autoencoder (arXiv 2111.06377)",
    )
    mask_ratio: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="share of the patches to predict; none: 0.5 for masked_patch_prediction, 0.75 for mae"
    )
    target: Literal["mean_color", "small_patch", "pixels"] = Field(
        "mean_color",
        description="for masked_patch_prediction: mean color of a patch or of its 4 x 4 cells, or its pixels",
    )
    decoder_layers: PositiveInt = Field(8, description="for mae: number of blocks of the decoder")
    decoder_dim: PositiveInt = Field(512, description="for mae: width of the decoder")
    decoder_heads: PositiveInt = Field(16, description="for mae: number of attention heads of the decoder")
    normalize_targets: bool = Field(True, description="for mae: normalise the pixels of each patch to predict")

    def __post_init__(self):
        if self.method == "mae":
            refuse_unused(self, ["target"], "for pretraining.method=masked_patch_prediction")
        else:
            names = ["decoder_layers", "decoder_dim", "decoder_heads", "normalize_targets"]
            refuse_unused(self, names, "for pretraining.method=mae")


@section
class Text:
    """The text encoder, for task=contrastive."""

    config: dict[str, Any] = Field(
        {},
        description="to train a text encoder from scratch: fields of keras_vit.TextConfig, such as context_length and "
        "hidden_dim; its vocabulary are the words of the training texts",
    )
    weights: str | None = Field(
        None, description="catalogue name, path or address of an image-text model; none: model.weights, without config"
    )
    tokenizer: str | None = Field(
        None, description="with a published text encoder: path of its tokenizer; none: it is beside the weights"
    )
    frozen: Literal["none", "image", "text"] = Field(
        "none", description="encoder that is not trained; image: as in LiT (arXiv 2111.07991)"
    )

    def __post_init__(self):
        TextConfig.check_names(self.config)
        dict(TextConfig.checked(self.config))


@section
class Distribution:
    """The devices of a run."""

    kind: Literal["none", "mirrored", "multi_worker", "tpu", "data_parallel", "model_parallel"] = Field(
        "none",
        description="with TensorFlow: mirrored (GPUs of this machine), multi_worker (machines of TF_CONFIG) or tpu; "
        "with JAX: data_parallel or model_parallel",
    )
    devices: Annotated[int, Field(gt=0, lt=100_000)] | None = Field(
        None, description="number of devices of this machine (simulated by the CPU without accelerators); none: all"
    )
    model_devices: PositiveInt = Field(1, description="for model_parallel: number of devices per copy of the model")
    shard_weights: bool = Field(
        False, description="for model_parallel: split each weight over all devices (FSDP, arXiv 2304.11277)"
    )

    def __post_init__(self):
        if self.kind != "model_parallel":
            refuse_unused(self, ["model_devices", "shard_weights"], "for distribution.kind=model_parallel")
        if self.kind == "none":
            refuse_unused(self, ["devices"], "with a distribution.kind other than none")


@section
class Recipe:
    """All settings of a run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][\w.-]{0,99}$", description="first part of the run folder's name")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        0, description="seed of the initial weights, the order of the images, and all other randomness"
    )
    task: Literal[*TASK_FIELDS] = Field(  # type: ignore[valid-type]
        "classification",
        description="classify whole images (classification) or each pixel (segmentation), find objects and their "
        "pixels (instance_segmentation, panoptic_segmentation), estimate depth (depth), find all labels of an image "
        "(multilabel), predict numbers (regression), find the texts of images (contrastive), or train without labels "
        "(pretraining)",
    )
    model: Model
    data: Data
    augment: Augment = Augment()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    fit: Fit
    distillation: Distillation = Distillation()
    pretraining: Pretraining = Pretraining()
    text: Text = Text()
    distribution: Distribution = Distribution()

    def __post_init__(self):
        check_recipe(self)


_ADAPTER = pydantic.TypeAdapter(Recipe)


def to_dict(recipe, exclude_defaults=False):
    """Converts a recipe to nested dictionaries of JSON types. Fields with their default values may be excluded."""
    return _ADAPTER.dump_python(recipe, mode="json", exclude_defaults=exclude_defaults)


def validate(fields):
    """Converts nested dictionaries to a recipe. Raises a pydantic.ValidationError if they are invalid."""
    return _ADAPTER.validate_python(fields)
