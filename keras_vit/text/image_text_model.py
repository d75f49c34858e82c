"""A pair of an image encoder and a text encoder. Shapes: B images, N texts, T tokens, E embedding."""

import collections.abc
import dataclasses
import functools
import os
import pathlib
import typing
import warnings
import weakref

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_vit.analysis.features import patch_tokens
from keras_vit.architectures.text import TextConfig
from keras_vit.checks import check_choice, check_positive_integer, shown
from keras_vit.graph import all_layers, check_images, to_array
from keras_vit.inference import predictor
from keras_vit.layers import Similarity
from keras_vit.models import KINDS
from keras_vit.models.building import SharedArguments
from keras_vit.models.naflex import naflex_inputs, naflex_model
from keras_vit.models.text_encoder import build_text_encoder, text_config
from keras_vit.outputs import Output
from keras_vit.preprocessing import preprocessing_layer
from keras_vit.pretrained import from_pretrained
from keras_vit.text.contrastive import loss_over_replicas
from keras_vit.text.detection import build_detector, embed_queries
from keras_vit.text.prompts import check_names, check_templates, class_embeddings
from keras_vit.text.tokenizers import Tokenizer
from keras_vit.weights.assign import assign, check, in_place_of_initial_values, variables_of
from keras_vit.weights.keras_files import checkpoint_of
from keras_vit.weights.loading import build_with_weights
from keras_vit.weights.opening import open_text

NONE_OF_THESE = "none of these"
"""Label of a class for images of no other class"""
_NO_TOKENIZER = (
    "The model has no tokenizer. Pass tokenizer=, the path of the file that its owners publish, to "
    "ImageTextModel.from_pretrained."
)
_LENGTH_STEP = 16
"""Texts of similar lengths are computed together, at a multiple of this number of tokens."""


@keras.saving.register_keras_serializable(package="keras_vit")
class ImageTextModel(keras.Model):
    """Compares images and texts: an image encoder and a text encoder with embeddings of the same width.

    The logit of the image x and the text y is `exp(s) cos(x, y) + b` (CLIP, arXiv 2103.00020; SigLIP, arXiv
    2303.15343). `ImageTextModel.from_pretrained` loads published models.

    The model is a functional `keras.Model`, and its `.keras` files contain the tokenizer. After `compile` with an
    optimizer, `fit` trains it on batches of pairs, {"images": (B, H, W, C), "token_ids": (B, T)}, with the loss of its
    owners (`keras_vit.text.contrastive.contrastive_loss`). To train one encoder only, set `trainable` of the other to
    `False`.

    Args:
        image_encoder: Model of this package that maps images to embeddings (B, E), such as `keras_vit.ViT("S/16",
            include_top=False)`.
        text_encoder: `keras_vit.TextConfig` of a newly initialised text encoder, or the text encoder of another model.
        activation: `"softmax"`: the texts of an image exclude each other. `"sigmoid"`: each text is judged on its own.
            The model then has a bias b.
        tokenizer: `keras_vit.text.tokenizers.Tokenizer`, or `None`. Without one, texts must be token ids.
        name: Name of the model.

    Call arguments:
        inputs: Dictionary of `images`, (B, H, W, C), and `token_ids`, integers (N, T).
        training: Whether dropout and drop path are applied.
        mask: Not used.

    Returns:
        Dictionary of `image`, (B, E + 1), and `text`, (N, E + 1), whose scalar products are the logits, as
        `keras_vit.layers.Similarity` returns them.

    Attributes:
        image_encoder: The image encoder, a functional `keras.Model`.
        text_encoder: The text encoder, a functional `keras.Model`.

    Raises:
        ValueError: If the embeddings differ in width, if the tokenizer has more tokens than the text encoder reads, or
            if an argument is invalid.

    Example:

    >>> import numpy as np, keras_vit
    >>> image_encoder = keras_vit.ViT("Ti/16", include_top=False, input_shape=(32, 32, 3), num_layers=1)
    >>> config = keras_vit.TextConfig(99, 7, 192, num_layers=1, num_heads=3, mlp_dim=64)
    >>> model = keras_vit.ImageTextModel(image_encoder, config)
    >>> model.similarity(np.zeros((2, 32, 32, 3)), [[5, 98, 0, 0, 0, 0, 0]]).shape
    (2, 1)
    """

    def __init__(
        self,
        image_encoder: keras.Model,
        text_encoder: TextConfig | keras.Model,
        activation: str = "softmax",
        tokenizer: Tokenizer | None = None,
        name: str | None = None,
    ) -> None:
        check_choice("activation", activation, ("softmax", "sigmoid"))
        if isinstance(text_encoder, TextConfig):
            text_encoder = build_text_encoder(text_encoder)
        widths = [encoder.output_shape[-1] for encoder in (image_encoder, text_encoder)]
        if len(image_encoder.output_shape) != 2 or widths[0] != widths[1]:
            raise ValueError(
                f"Images and texts need embeddings of the same width. Received: {image_encoder.output_shape} of images "
                f"and {text_encoder.output_shape} of texts. TextConfig(projection_dim={widths[0]}) projects texts"
            )
        if tokenizer is not None:
            _check_tokenizer(tokenizer, text_encoder)
        images, token_ids = image_encoder.input, text_encoder.input
        inputs = {
            "images": keras.Input(images.shape[1:], dtype=images.dtype, name="images"),
            "token_ids": keras.Input(token_ids.shape[1:], dtype=token_ids.dtype, name="token_ids"),
        }
        similarity = Similarity(activation == "sigmoid", name="similarity")
        image, text = similarity(image_encoder(inputs["images"]), text_encoder(inputs["token_ids"]))
        super().__init__(inputs, {"image": image, "text": text}, name=name)
        self.image_encoder, self.text_encoder, self.similarity_layer = image_encoder, text_encoder, similarity
        self.activation, self.tokenizer = activation, tokenizer
        self._source: typing.Any = None

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike,
        tokenizer: str | os.PathLike | Tokenizer | None = None,
        **arguments: typing.Any,
    ) -> "ImageTextModel":
        """Builds the model that a file of published weights describes, and loads the weights.

        Args:
            source: As in `keras_vit.from_pretrained`: a file of CLIP, MetaCLIP, SigLIP or TIPSv2 in transformers'
                layout, of OpenCLIP or Perception Encoder, or of SigLIP in the layout of big_vision.
            tokenizer: Path of the file of the tokenizer, or of the folder that contains it. `None`: it is beside the
                weights. If there is none, texts must be token ids.
            **arguments: Further arguments of `keras_vit.from_pretrained` for the image encoder, such as `input_shape`.

        Raises:
            ValueError: If the file has no text encoder, or as in `keras_vit.from_pretrained`.
            OSError: If the source or the tokenizer cannot be found or downloaded.

        Example:

        >>> import keras_vit
        >>> model = keras_vit.ImageTextModel.from_pretrained("hf://openai/clip-vit-base-patch32")  # doctest: +SKIP
        """
        checkpoint = open_text(source, family=arguments.get("family"))
        folder = checkpoint.folder if tokenizer is None else tokenizer
        if isinstance(folder, Tokenizer) or folder is None:
            tokenizer = folder
        else:
            try:
                tokenizer = Tokenizer.from_file(checkpoint.tokenizer, folder, checkpoint.config.context_length)
            except FileNotFoundError:
                if tokenizer is not None:
                    raise
        weights = checkpoint.read()
        similarity = {path: weights.pop(path) for path in list(weights) if path.startswith("similarity/")}
        with in_place_of_initial_values() as assign_later:
            text_encoder = build_text_encoder(checkpoint.config)
            _assign(assign_later, weights, text_encoder.layers)
        image_encoder = from_pretrained(source, **{"classifier_activation": None} | arguments)
        model = cls(image_encoder, text_encoder, checkpoint.activation, tokenizer)
        _assign(assign, similarity, [model.similarity_layer])
        model._source = source, arguments
        return model

    def fit(self, x=None, *arguments, **options):
        token_ids = x.get("token_ids") if isinstance(x, dict) else None
        if isinstance(token_ids, (list, tuple, np.ndarray)):  # Those of data sets and generators are read later.
            self._checked_ids(token_ids)
        return super().fit(x, *arguments, **options)

    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=training, mask=mask)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """The contrastive loss of the batch over all replicas, plus the losses of layers.

        See `keras_vit.text.contrastive.contrastive_loss`.
        """
        image, text = y_pred["image"], y_pred["text"]
        counts = {rows.shape[0] for rows in (image, text)} - {None}
        if y is not None or sample_weight is not None or len(counts) > 1:
            raise ValueError(
                f"The images and texts of a batch are each other's targets. Pass {{'images': ..., 'token_ids': ...}}, "
                f"with as many texts as images, and neither targets nor sample weights. Received: {image.shape[0]} "
                f"images, {text.shape[0]} texts, {'no' if y is None else 'some'} targets and "
                f"{'no' if sample_weight is None else 'some'} sample weights."
            )
        loss, num_replicas = loss_over_replicas(image, text, self.activation)
        return sum(self.losses, loss) / num_replicas  # Keras sums the gradients of replicas.

    def image_embeddings(
        self,
        images: ArrayLike | collections.abc.Sequence[ArrayLike],
        batch_size: int = 32,
        max_patches: int | None = None,
    ) -> np.ndarray:
        """Returns the embeddings of images, unit vectors, float32 (B, E).

        Args:
            images: (B, H, W, C), as the image encoder expects them: pixels in [0, 255] if it has
                `include_preprocessing`, and otherwise the result of `keras_vit.preprocess_input(images, model)`. With
                `max_patches`: list of images (H, W, C) of any sizes, pixels in [0, 255].
            batch_size: Number of images that are computed together.
            max_patches: For encoders that were trained with images of any proportions (NaFlex), the largest number of
                patches of an image, as in `keras_vit.naflex_model`. `None`: all images have the size of the encoder.

        Raises:
            ValueError: If the images have other shapes.
        """
        if max_patches is not None:
            naflex = _naflex_model(self.image_encoder, max_patches)

            def compute(rows):
                return naflex.predict_on_batch(naflex_inputs(rows, naflex))

            return _units(naflex, compute, images, batch_size)
        if not isinstance(images, (list, tuple)) or images:
            images = check_images(images, self.image_encoder.input_shape)
        return _units(self.image_encoder, predictor(self.image_encoder), images, batch_size)

    def text_embeddings(self, texts: str | ArrayLike, batch_size: int = 256) -> np.ndarray:
        """Returns the embeddings of texts, unit vectors, float32 (N, E).

        Args:
            texts: A text, a list of N texts, or token ids (N, T).
            batch_size: Number of texts that are computed together.
        """
        token_ids = self._shortened(self._token_ids(texts))
        return _units(self.text_encoder, predictor(self.text_encoder), token_ids, batch_size)

    def similarity(self, images: ArrayLike, texts: str | ArrayLike, logits: bool = False) -> np.ndarray:
        """Returns how well each text describes each image, float32 (B, N).

        Args:
            images: Images, as in `image_embeddings`, or their embeddings (B, E).
            texts: Texts, as in `text_embeddings`, or their embeddings (N, E).
            logits: Whether logits are returned in place of probabilities: those of a softmax over the texts, or of a
                sigmoid for each pair, as the model's owners define it.
        """
        image = self._given(images)
        image = self.image_embeddings(images) if image is None else image
        layer = self.similarity_layer
        found = np.exp(to_array(layer.log_scale)) * image @ self._text_rows(texts).T
        if layer.use_bias:
            found += to_array(layer.bias)
        activation = keras.activations.get(None if logits else self.activation)
        return keras.ops.convert_to_numpy(activation(keras.ops.convert_to_tensor(found, "float32")))

    def text_maps(self, images: ArrayLike, texts: str | ArrayLike) -> np.ndarray:
        """Returns where each text is in each image: the cosine of each patch and each text, float32 (B, N, h, w).

        The vector of a patch is what the image encoder would return if it pooled this patch alone: with a class token,
        the patch takes its place; with attention pooling, it is the only token (as in MaskCLIP, arXiv 2112.01071). The
        encoders of TIPSv2 (arXiv 2604.12012) were trained for it, other encoders were not.

        Args:
            images: Images, as in `image_embeddings`. All of them pass through the encoder in one batch.
            texts: Texts, as in `text_embeddings`, or their embeddings (N, E).

        Raises:
            ValueError: If the image encoder merges tokens.
        """
        tokens = patch_tokens(self.image_encoder, images)
        names = [layer.name for layer in self.image_encoder.layers]
        num_skipped = getattr(self.image_encoder.get_layer("pooling"), "num_prefix_tokens", 0)
        rows = keras.ops.reshape(tokens, (-1, 1, tokens.shape[-1]))
        rows = keras.ops.repeat(rows, 1 + num_skipped, axis=1)  # The pooling leaves the first ones out.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You are using a softmax over axis")  # of a single token
            for layer in self.image_encoder.layers[names.index("pooling") :]:
                rows = layer(rows)
        patches = divided_by_length(to_array(rows)).reshape(*tokens.shape[:3], -1)
        return np.einsum("bhwe,ne->bnhw", patches, self._text_rows(texts))

    def classifier(
        self,
        names: collections.abc.Sequence[str] | collections.abc.Mapping[str, str | collections.abc.Sequence[str]],
        templates: str | collections.abc.Sequence[str] = "clip_best",
        activation: str = "softmax",
        none_of_these: collections.abc.Sequence[str] | None = None,
    ) -> keras.Model:
        """Builds a classifier of images whose classes are words, without training (zero-shot).

        The classifier is an ordinary `keras_vit.ViT`: the weights of its last layer are the embeddings of the classes,
        times the scale of the model. Training, analyses and exports treat it like any other classifier. The embeddings
        of the texts are kept on disk, so the same names are embedded once.

        Args:
            names: Names of the classes, or {label: list of names} if classes have several names.
            templates: Sentences in which `{}` stands for a name, or a key of `keras_vit.text.prompts.TEMPLATES`:
                `"name"`, the name alone; `"photo"`, one sentence; `"clip_best"`, seven; `"clip"`, 80.
            activation: `"softmax"`: each image has one of the classes. `"sigmoid"`: it can have several or none. The
                probabilities are calibrated only if the model was trained with the same activation.
            none_of_these: Names of things that belong to no class, such as `["thing", "animal"]`. They are the names
                of a last class, `"none of these"`.

        Returns:
            A `keras.Model`, as built by `keras_vit.ViT`. Input: as of the image encoder. Output (B, C).

        Raises:
            ValueError: If the model has no tokenizer, or names or templates are invalid.
        """
        classes = check_names(names)
        if none_of_these is not None:
            if NONE_OF_THESE in classes:
                raise ValueError(
                    f"{NONE_OF_THESE!r} is a label already. Pass its names either in names or as none_of_these."
                )
            classes |= check_names({NONE_OF_THESE: none_of_these})
        check_choice("activation", activation, ("softmax", "sigmoid"))
        layer, embeddings = self.similarity_layer, self._class_embeddings(classes, templates)
        kernel = np.exp(to_array(layer.log_scale)) * embeddings.T
        bias = to_array(layer.bias) if layer.use_bias else 0.0
        checkpoint = checkpoint_of(self.image_encoder, self.name)

        def read():
            weights = {path.replace("predictions/", "projection/"): array for path, array in checkpoint.read().items()}
            return weights | {"predictions/kernel": kernel, "predictions/bias": np.full(len(classes), bias, "float32")}

        config = checkpoint.config.replace(projection_dim=checkpoint.classes, unit_representation=True)
        kind = {"softmax": "classes", "sigmoid": "labels"}[activation]
        facts = {"config": config, "classes": len(classes), "label_space": list(classes), "output": Output(kind)}
        arguments = {**checkpoint.arguments, "classes": len(classes), "classifier_activation": activation}
        name = arguments.pop("name")
        build = functools.partial(
            KINDS[config.kind].build, config, SharedArguments(**arguments), name, checkpoint.grid_size
        )
        return build_with_weights(build, dataclasses.replace(checkpoint, read=read, **facts))

    def detector(
        self,
        names: collections.abc.Sequence[str] | collections.abc.Mapping[str, str | collections.abc.Sequence[str]],
        templates: str | collections.abc.Sequence[str] = "clip_best",
        embeddings: ArrayLike | None = None,
    ) -> keras.Model:
        """Builds a detector of objects whose classes are words, without training, from a file of OWL-ViT or OWLv2.

        The detector is an ordinary `keras_vit.Detector`: the weights of its last layer are the embeddings of the
        classes. Its encoder and its head have the weights of the file, also if this model was trained.

        Args:
            names: Names of the classes, or {label: list of names} if classes have several names.
            templates: As in `classifier`.
            embeddings: Embeddings of the classes, (C, E), in place of those of their names: those of images from
                `image_queries`, or of other texts.

        Returns:
            A `keras.Model`, as built by `keras_vit.Detector`.

        Raises:
            ValueError: If the model was not read from a file of OWL-ViT or OWLv2, or as in `classifier`.
        """
        classes = check_names(names)
        if embeddings is None:
            embeddings = self._class_embeddings(classes, templates)
        if np.shape(embeddings) != (expected := (len(classes), self.text_encoder.output_shape[-1])):
            raise ValueError(f"embeddings must be of shape {expected}. Received: {np.shape(embeddings)}")
        return build_detector(*self._source_of_detectors(), list(classes), embeddings)

    def image_queries(self, images: ArrayLike, batch_size: int = 8) -> np.ndarray:
        """Returns embeddings of the main object in each image, for `detector`: it finds objects that look like these.

        Args:
            images: (B, H, W, C), as the detector expects them.
            batch_size: Number of images that are computed together.

        Returns:
            float32 (B, E)

        Raises:
            ValueError: If the model was not read from a file of OWL-ViT or OWLv2, or the images have another shape.
        """
        return embed_queries(*self._source_of_detectors(), images, batch_size)

    def _class_embeddings(self, classes, templates):
        if self.tokenizer is None:
            raise ValueError(_NO_TOKENIZER)
        return class_embeddings(self, classes, check_templates(templates))

    def _source_of_detectors(self) -> tuple[typing.Any, dict[str, typing.Any]]:
        """Source and arguments of `keras_vit.from_pretrained` for the file from which the model was read."""
        if self._source is None:
            raise ValueError(
                "The weights of the detector are in a file of OWL-ViT or OWLv2, and this model was not read from one. "
                "Call ImageTextModel.from_pretrained."
            )
        return self._source

    def _given(self, rows):
        """Unit vectors, if `rows` are embeddings: floats (N, E). Otherwise `None`."""
        if len(getattr(rows, "shape", ())) != 2:
            return None
        rows, width = np.asarray(rows), self.text_encoder.output_shape[-1]
        if rows.dtype.kind in "iu":  # Token ids.
            return None
        if rows.shape[1] != width:
            raise ValueError(f"Embeddings must be (N, {width}). Received: an array of shape {rows.shape}")
        return divided_by_length(rows.astype("float32"))

    def _text_rows(self, texts):
        """The embeddings of texts, which may be given."""
        rows = self._given(texts)
        return self.text_embeddings(texts) if rows is None else rows

    def _token_ids(self, texts):
        first = (
            texts
            if isinstance(texts, (str, bytes)) or not isinstance(texts, collections.abc.Sequence)
            else next(iter(texts), "")
        )
        if not isinstance(first, (str, bytes)):
            return self._checked_ids(texts)
        if self.tokenizer is None:
            raise ValueError(f"{_NO_TOKENIZER} Or pass token ids. Received: {shown(texts)}")
        return self.tokenizer(texts)

    def _checked_ids(self, token_ids):
        """Token ids as int32 (N, T)."""
        try:
            ids = np.asarray(token_ids)
        except ValueError:  # The lists have different lengths.
            ids = np.empty(0, object)
        length = self.text_encoder.get_layer("position_embedding").context_length
        count = self.text_encoder.get_layer("token_embedding").vocabulary_size
        if ids.dtype.kind not in "iu":
            raise TypeError(
                f"Texts must be a string, a list of strings, or token ids, integers (N, T), such as "
                f"model.tokenizer(texts). Received: {shown(token_ids)}"
            )
        is_fixed = self.text_encoder.input_shape[1] is not None
        if ids.ndim != 2 or ids.shape[1] > length or (is_fixed and ids.shape[1] < length):
            raise ValueError(
                f"Token ids must be (N, T), with {'' if is_fixed else 'at most '}{length} tokens. Received: {ids.shape}"
            )
        if ids.size and not 0 <= ids.min() <= ids.max() < count:
            raise ValueError(f"Token ids must be from 0 to {count - 1}. Received: {ids.min()} to {ids.max()}")
        return ids.astype("int32")

    def _shortened(self, token_ids):
        """Token ids without columns that consist of padding, if the text encoder does not read them."""
        if self.text_encoder.input_shape[1] is not None:
            return token_ids
        padding = self.text_encoder.get_layer("pooling").padding_id
        # The end token of some models is the padding. Therefore one column of padding is kept.
        length = np.flatnonzero((token_ids != padding).any(axis=0)).max(initial=0) + 2
        return token_ids[:, : -(-length // _LENGTH_STEP) * _LENGTH_STEP]

    @property
    def text_config(self) -> TextConfig:
        """The architecture of the text encoder."""
        return text_config(self.text_encoder)

    def get_config(self):
        tokenizer = self.tokenizer and {
            "kind": self.tokenizer.kind,
            "context_length": self.tokenizer.context_length,
        }
        return {
            "image_encoder": keras.saving.serialize_keras_object(self.image_encoder),
            "text_encoder": keras.saving.serialize_keras_object(self.text_encoder),
            "activation": self.activation,
            "tokenizer": tokenizer,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config):
        names = ("image_encoder", "text_encoder")
        encoders = {name: keras.saving.deserialize_keras_object(config[name]) for name in names}
        model = cls(**config | encoders | {"tokenizer": None})
        model._tokenizer_config = config["tokenizer"]
        return model

    def save_assets(self, dir_path):
        if self.tokenizer is not None:
            pathlib.Path(dir_path, "vocabulary").write_bytes(self.tokenizer.vocabulary)

    def load_assets(self, dir_path):
        path = pathlib.Path(dir_path, "vocabulary")
        if path.is_file():
            self.tokenizer = Tokenizer(vocabulary=path.read_bytes(), **self._tokenizer_config)


def _naflex_model(encoder, max_patches):
    """The `naflex_model` of an encoder. It is built once, so that it is compiled once."""
    built = _NAFLEX_MODELS.setdefault(encoder, {})
    pixels = preprocessing_layer(encoder).pixel_settings
    state = max_patches, repr(pixels), *(layer.quantization_mode for layer in all_layers(encoder))
    if state not in built:
        built[state] = naflex_model(encoder, max_patches)
    return built[state]


_NAFLEX_MODELS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
"""{image encoder: {what a model was built for: model}}"""


def _check_tokenizer(tokenizer, text_encoder):
    count = text_encoder.get_layer("token_embedding").vocabulary_size
    if tokenizer.vocabulary_size > count:
        raise ValueError(
            f"The tokenizer has {tokenizer.vocabulary_size:,} tokens, but the text encoder reads only {count:,}. Pass "
            f"the tokenizer that was published with the weights."
        )
    length = text_encoder.get_layer("position_embedding").context_length
    is_fixed = text_encoder.input_shape[1] is not None  # Its attention sees padding.
    if tokenizer.context_length > length or (is_fixed and tokenizer.context_length < length):
        raise ValueError(
            f"The text encoder reads {'' if is_fixed else 'at most '}{length} tokens. Received: a tokenizer with "
            f"context_length={tokenizer.context_length}"
        )


def _assign(assign, weights, layers):
    variables = variables_of(layers)
    check(weights, variables, {layer.name: {layer.compute_dtype} for layer in layers})
    assign(weights, variables)


def _units(encoder, compute, rows, batch_size):
    """Unit vectors of the outputs of an encoder for all rows. `compute` returns those of a batch."""
    check_positive_integer("batch_size", batch_size)
    batches: collections.abc.Iterable = (rows[first : first + batch_size] for first in range(0, len(rows), batch_size))
    none = np.zeros((0, encoder.output_shape[-1]), "float32")  # The result if there are no rows.
    return divided_by_length(np.concatenate([none, *(np.asarray(compute(batch), "float32") for batch in batches)]))


def divided_by_length(found):
    """Rows as unit vectors. Rows of zeros stay zero."""
    return found / np.maximum(np.linalg.norm(found, axis=-1, keepdims=True), 1e-12)
