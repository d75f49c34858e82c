"""SavedModels of image-text models for TensorFlow Serving. Shapes: B images, N texts, T tokens, E embedding."""

import collections.abc
import functools
import os
import pathlib

import numpy as np

from keras_vit.atomic_files import replace_atomically
from keras_vit.checks import MAX_PIXELS, check_choice, check_positive_integer
from keras_vit.export.answers import SIMILAR
from keras_vit.export.elsewhere import with_tensorflow
from keras_vit.export.parity import check_limits, computes_in_float32
from keras_vit.export.precision import PRECISIONS
from keras_vit.export.saved_model import new_version, write_facts
from keras_vit.export.server_files import check_name, default_name, write_operator_files
from keras_vit.graph import to_array
from keras_vit.models.naflex import naflex_model
from keras_vit.preprocessing import input_preprocessing, preprocess_input
from keras_vit.pretrained import describe
from keras_vit.text.image_text_model import ImageTextModel, divided_by_length


def export_image_text_model(
    model: ImageTextModel,
    path: str | os.PathLike,
    version: int = 1,
    overwrite: bool = False,
    precision: str = "float32",
    tolerance: float = 1e-4,
    image_size: tuple[int, int] | None = None,
    max_patches: int | None = None,
    batch_sizes: collections.abc.Sequence[int] = (1, 8, 32),
    max_image_pixels: int = MAX_PIXELS,
    name: str | None = None,
) -> pathlib.Path:
    """Writes both encoders of an image-text model as one SavedModel, in the folder layout of TensorFlow Serving.

    The SavedModel in `path/<version>/` has three signatures, which take batches of any size:

    * `image` takes `image_bytes` (B,), the contents of JPEG, PNG, GIF, BMP or WebP files. It returns `embedding`
      (B, E), unit vectors, and `valid` (B,).
    * `text` takes `token_ids` (N, T) in int32, where T is the context length. It returns `embedding` (N, E), unit
      vectors, and `valid` (N,).
    * `similarity` takes `image_bytes` (B,) and `token_ids` (B, N, T), a list of N texts for each image. It returns
      `logits` and `probabilities` (B, N), as `ImageTextModel.similarity` computes them, and `valid` (B,).

    For an image that cannot be decoded, and for texts with ids outside of the vocabulary, `valid` is `False` and the
    other outputs are zero. The other rows are unaffected. Each row depends on its own inputs only, so a server may
    merge requests. `keras_vit.text.client.Client` sends images and texts to the server, and tokenizes the texts. The
    file of the tokenizer is in `assets`. `keras_vit.json` describes the model. It has the scale, the bias and the
    activation with which a client can compare embeddings itself.

    The SavedModel is compared with the model on photographs and random token ids before it is moved to its final path.
    To export a classifier whose classes are words, call `keras_vit.export_saved_model(model.classifier(names), path)`.

    Args:
        model: `keras_vit.ImageTextModel`
        path: Folder of all versions of the model.
        version: Version number.
        overwrite: Whether the folder of an existing version may be replaced, with all its files.
        precision: `"float32"`, `"bfloat16"` or `"int8"`, as in `keras_vit.export_saved_model`.
        tolerance: Maximum length of the difference of two embeddings, and maximum difference of two cosines, for
            float32 weights. Embeddings of lower precision must have a cosine of at least 0.99 with the model's.
        image_size: (height, width) of decoded images, for an image encoder that takes images of any size.
        max_patches: For encoders that were trained with images of any proportions (NaFlex), the largest number of
            patches of an image, as in `keras_vit.naflex_model`. `None`: all images are resized to the encoder's size.
        batch_sizes: Expected batch sizes, with which the server is warmed up. Batches above the largest size are split.
        max_image_pixels: Maximum height times width of an image. Larger images are not decoded and not valid.
        name: Name of the model for clients. By default the name of the folder `path`.

    Returns:
        The path of the version's folder, as a `pathlib.Path`.

    Raises:
        FileExistsError: If the version exists and `overwrite` is `False`.
        RuntimeError: If Keras does not run on TensorFlow, and the process that writes the SavedModel fails.
        ValueError: If an argument is invalid, or if the outputs of the SavedModel differ from the model's.
        OSError: If a file cannot be written.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ImageTextModel.from_pretrained("clip", include_preprocessing=True)  # doctest: +SKIP
    >>> keras_vit.export_image_text_model(model, "models/clip")  # doctest: +SKIP
    PosixPath('models/clip/1')
    """
    if not isinstance(model, ImageTextModel):
        raise ValueError(
            f"export_image_text_model writes a keras_vit.ImageTextModel. Other models are written by "
            f"keras_vit.export_saved_model. Received: {type(model).__name__} {model.name!r}"
        )
    path = pathlib.Path(path)
    folder = new_version(path, version, overwrite)
    if max_patches is None:
        input_preprocessing(model.image_encoder, image_size)
    else:
        naflex_model(model.image_encoder, max_patches)
    check_limits(tolerance, 1.0)
    options = {
        "precision": check_choice("precision", precision, PRECISIONS),
        "image_size": None if image_size is None else [int(side) for side in image_size],
        "max_patches": max_patches,
        "max_image_pixels": check_positive_integer("max_image_pixels", max_image_pixels),
        "batch_sizes": sorted({check_positive_integer("batch_sizes", size) for size in batch_sizes}),
    }
    if not options["batch_sizes"]:
        raise ValueError(f"batch_sizes must contain at least one number of images. Received: {batch_sizes!r}")
    name = default_name(path) if name is None else check_name(name)
    path.mkdir(parents=True, exist_ok=True)
    with replace_atomically(folder, overwrite=overwrite) as working:
        saved, file = working / folder.name, working / "answers.npz"
        saved.mkdir()
        write = functools.partial(with_tensorflow, _write, model, folder=str(saved), answers=str(file))
        write(model_name=name, **options)
        with np.load(file) as answers:
            exact = precision == "float32" and all(map(computes_in_float32, (model.image_encoder, model.text_encoder)))
            differences = _compare(model, max_patches, answers, exact, tolerance)
        write_facts(saved, name, version, model, _facts(model, options, differences))
    write_operator_files(path, name, version, options["batch_sizes"], jit_compile=False)
    return folder


def _write(model, **arguments):
    """Calls `write_image_text_model`, whose module imports TensorFlow."""
    from keras_vit.export.image_text.writing import write_image_text_model

    write_image_text_model(model, **arguments)


def _compare(model, max_patches, answers, exact, tolerance):
    """The differences between the answers of a SavedModel and the model, {signature: difference}."""
    if max_patches is None:
        pixels = answers["pixels"].astype("float32")
        image = model.image_embeddings(preprocess_input(pixels, model.image_encoder))
    else:
        inputs = {name: answers[name] for name in ("patches", "grid")}
        image = divided_by_length(np.asarray(naflex_model(model.image_encoder, max_patches).predict_on_batch(inputs)))
    expected = {"image": image, "text": model.text_embeddings(answers["token_ids"])}
    if (equal := [name for name, rows in expected.items() if np.ptp(rows, axis=0).max() <= tolerance]) and exact:
        raise ValueError(
            f"The embeddings of all {equal[0]}s are equal, so the export cannot be checked. Nothing was exported. Load "
            f"weights."
        )
    scale = np.exp(to_array(model.similarity_layer.log_scale))
    logits = model.similarity(*expected.values(), logits=True)
    lengths = {name: np.linalg.norm(answers[name] - rows, axis=-1) for name, rows in expected.items()}
    lengths["similarity"] = abs(answers["logits"] - logits) / scale
    differences = {name: float(np.max(each)) for name, each in lengths.items()}
    # The square of the distance of two unit vectors is 2 - 2 cos.
    limit = tolerance if exact else (2 - 2 * SIMILAR) ** 0.5
    if wrong := [name for name, difference in differences.items() if not difference <= limit]:
        raise ValueError(
            f"The outputs of the SavedModel differ from the model's: {wrong[0]!r} by {differences[wrong[0]]:.1e}, but "
            f"at most {limit:.1e} is allowed. Nothing was exported. Choose precision='float32', or a larger tolerance."
        )
    return differences


def _facts(model, options, differences):
    layer, tokenizer, description = model.similarity_layer, model.tokenizer, describe(model.image_encoder)
    return {
        "signatures": ["image", "similarity", "text"],
        "similarity": {
            "scale": float(np.exp(to_array(layer.log_scale))),
            "bias": float(to_array(layer.bias)) if layer.use_bias else 0.0,
            "activation": model.activation,
        },
        "tokenizer": tokenizer
        and {"kind": tokenizer.kind, "file": tokenizer.file_name, "context_length": tokenizer.context_length},
        "input_shape": model.image_encoder.input_shape[1:],
        "config": description.config.to_dict(),
        "text_config": model.text_config.to_dict(),
        "weights": {name: getattr(description, name) for name in ("source", "licence", "adaptations")},
        "preprocessing": description.pixels,
        "options": options,
        "parity": {"max_difference": differences},
    }
