"""Looks inside a trained model: writes figures, their data and an HTML page for a user's own pictures.

N pictures, H W C image, h w grid of patches, L layers, K heads.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit.analysis import plots
from keras_vit.analysis.embeddings import num_filters
from keras_vit.architectures import VTResNetConfig, read_architecture
from keras_vit.decoding import image_decoder
from keras_vit.export.signatures import is_segmenter
from training import recipes
from training.data.images import read_image
from training.data.loading import load_dataset
from training.data.sources import IndexedSource, StreamedSource
from training.data.subsets import select
from training.errors import InputError, without_queries
from training.inspection.predict import find_saved_model
from training.reports.explain_page import Findings, write_page
from training.reports.tables import write_csv
from training.runs.folder import Run, load_model
from training.runs.opening import open_model

_BATCH_SIZE = 64  # A rollout keeps all layers in memory, so its batches are smaller.
_ROLLOUT_BATCH_SIZE = 8
_NUM_AVERAGED = 128  # Images over which attention distances are averaged (ViT, figure 7).
_NUM_SEARCHED = 2000  # Training images that are searched for neighbours.
_MOST_ROWS = 12  # Rows of the figure of neighbours; the table contains all.
_MOST_PAIRS = 40  # Pairs of the figure of rollouts; the arrays contain all.
_NUM_FILTERS = 28


def explain(source, images=(), path=None, compare=(), neighbours=5, image_size=None):
    """Writes figures of the attention and the weights of a model, and the page `explain.html`.

    Args:
        source: A run's folder; a `.keras` file; weights as in `keras_vit.from_pretrained`, such as a name in the
            catalogue; or an exported SavedModel, which provides only the rollout.
        images: Paths of image files; by default the run's samples. Unreadable files are reported and skipped.
        path: Folder to write to. The default is `figures/explain` in the run's folder or beside the `.keras` file, and
            `explain` in the working directory for weights and a SavedModel.
        compare: More runs, `.keras` files or weights. The figures of distance, entropy and positions show them beside
            the model.
        neighbours: Number of the most similar training images of the run to show for each picture. With 0 the run's
            data set is not read at all.
        image_size: (height, width) to which images are resized, for models of variable input size.

    Returns:
        The path of the page, and the number of unreadable images.

    Raises:
        InputError: If there is no model or no readable picture, or the folder cannot be created.
    """
    run = _run_of(source)
    saved_model = None if run else _saved_model(source)
    if saved_model:
        return _explain_saved_model(saved_model, images, path, compare)
    subject, *compared = _subjects([source, *compare], image_size)
    if compared and _has_tokens(subject):
        raise InputError(
            "--compare works with Vision Transformers only: a VT-ResNet has figures of filters, tokens and neighbours. "
            "Leave it out."
        )
    pictures = _read_pictures(subject, images or (sorted(run.samples.glob("*")) if run else ()))
    is_run = run is not None and run.folder == pathlib.Path(source)
    examples = _training_examples(run) if is_run and neighbours else None
    folder = _make_folder(path or (run.figures / "explain" if run else "explain"))
    findings = _write_figures(folder, [subject, *compared], pictures, examples, neighbours)
    return write_page(folder / "explain.html", subject, pictures, findings), pictures.num_unreadable


def _run_of(source):
    """The run whose folder is `source` or contains the `.keras` file `source`; `None` for anything else."""
    path = pathlib.Path(source)
    if path.suffix == ".keras":
        return Run(path.parent)
    return Run(path) if Run(path).recipe.is_file() else None


def _saved_model(source):
    try:
        return find_saved_model(source)
    except InputError:
        return None


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model to inspect: its name, the function from encoded images to its pixels, and `stride`.

    The model crops images to multiples of `stride` (rows, columns), the size of a patch. `(1, 1)`: it does not crop."""

    name: str
    model: keras.Model
    decode: Callable
    stride: tuple[int, int] = (1, 1)

    def prepared(self, pixels):
        """Pixels as inputs of the model."""
        return keras_vit.preprocess_input(pixels, self.model)


@dataclasses.dataclass(frozen=True)
class Pictures:
    """The user's images: names, contents of the files, pixels uint8 (N, H, W, C) at the model's input size, the part of
    the pixels that the patches cover, and the number of unreadable files."""

    names: list[str]
    contents: list[bytes]
    pixels: np.ndarray
    covered: np.ndarray
    num_unreadable: int


@dataclasses.dataclass(frozen=True)
class _Examples:
    """The training images of a run, as loaded by `training.data.loading`."""

    class_names: tuple[str, ...]
    source: IndexedSource | StreamedSource

    def spread(self, decode, count):
        """At most `count` images, spread evenly: a `tf.data.Dataset` of (pixels, label), and their indices."""
        indices = np.linspace(0, self.source.size - 1, min(count, self.source.size)).astype(int)
        examples = select(self.source, indices).in_order()
        return examples.map(lambda example: (decode(example["image"]), example["label"]), tf.data.AUTOTUNE), indices

    def name(self, label):
        """The name of the right class, or the names of several."""
        return " or ".join(self.class_names[index] for index in np.atleast_1d(label))


def _subjects(sources, image_size):
    names = [_name(source) for source in sources]
    if len(set(names)) < len(names):
        names = [without_queries(str(source)) for source in sources]
    subjects = []
    for name, source in zip(names, sources, strict=True):
        model = _load(source)
        if is_segmenter(model):
            raise InputError(f"explain works with classifiers only, and {source} is a semantic segmentation model.")
        try:
            decode, config = image_decoder(model, image_size), keras_vit.describe(model).config
            subjects.append(Subject(name, model, decode, _stride(config)))
        except ValueError as error:
            message = str(error).replace("image_size=(height, width)", "--image-size H W")
            raise InputError(f"{source}: {message}") from None
    return subjects


def _name(source):
    path = pathlib.Path(source)
    if path.suffix == ".keras":
        return path.stem
    return path.resolve().name if path.exists() else without_queries(str(source))


def _load(source):
    path = pathlib.Path(source)
    if path.suffix == ".keras":  # Unlike `open_model`, allows models that take normalised pixels.
        return load_model(path)
    return open_model(source).model


def _stride(config):
    return config.total_stride if getattr(config, "crop_to_patches", False) and config.stem is None else (1, 1)


def _read_pictures(subject, paths):
    names, contents, pixels, unreadable = [], [], [], 0
    for path in map(pathlib.Path, paths):
        try:
            content, decoded = read_image(path, subject.decode)
        except OSError as error:
            unreadable += 1
            print(f"{path}: cannot be read: {error.strerror}")
        except ValueError as error:
            unreadable += 1
            print(f"{path}: is not an image that can be decoded (JPEG, PNG, GIF, BMP or WebP): {error}")
        else:
            pixels.append(decoded.numpy())
            contents.append(content)
            names.append(path.name)
    if not pixels:
        raise InputError("There is no readable picture. Name image files after the model.")
    stacked = np.stack(pixels)
    return Pictures(names, contents, stacked, _covered(stacked, subject.stride), unreadable)


def _covered(pixels, stride):
    """The pixels without the margins that do not fill a patch."""
    height, width = (size - size % side for size, side in zip(pixels.shape[1:3], stride, strict=True))
    return pixels[:, :height, :width]


def _training_examples(run):
    """The training images of a run. If they cannot be loaded, prints the reason and returns `None`."""
    try:
        dataset = load_dataset(recipes.load(str(run.recipe)).data)
    except InputError as error:
        print(f"The run's training images are left out: {error}")
        return None
    return _Examples(dataset.class_names, dataset.splits["train"]) if "train" in dataset.splits else None


def _make_folder(path):
    folder = pathlib.Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be created: {error.strerror}. Name another folder with --path.") from None
    return folder


def _write_figures(folder, subjects, pictures, examples, neighbours):
    """Writes every figure that the models support, and returns the `Findings` for the page."""
    subject, findings = subjects[0], Findings(folder)
    _write_filters(findings, subject)
    if _has_tokens(subject):
        _write_tokens(findings, subject, pictures)
    else:
        _write_positions(findings, subjects)
        _write_heads(findings, subjects, pictures, examples)
        _write_rollouts(findings, pictures, lambda: _in_batches(subject, pictures, keras_vit.attention_rollout))
    if examples is not None:
        _write_neighbours(findings, subject, pictures, examples, neighbours)
    return findings


def _has_tokens(subject):
    return isinstance(keras_vit.describe(subject.model).config, VTResNetConfig)


def _in_batches(subject, pictures, analysis):
    starts = range(0, len(pictures.pixels), _ROLLOUT_BATCH_SIZE)
    parts = [pictures.pixels[start : start + _ROLLOUT_BATCH_SIZE] for start in starts]
    return np.concatenate([analysis(subject.model, subject.prepared(part)) for part in parts])


def _write_tokens(findings, subject, pictures):
    with findings.trying("tokens"):
        lineage = _in_batches(subject, pictures, keras_vit.token_lineage)
        np.savez_compressed(findings.folder / "tokens.npz", names=np.array(pictures.names), lineage=lineage)
        figure = plots.plot_token_maps(pictures.pixels[:_MOST_ROWS], lineage[:_MOST_ROWS, -1])
        findings.save("tokens", figure, "each picture beside the origin of its visual tokens")


def _write_filters(findings, subject):
    with findings.trying("filters"):
        filters = keras_vit.embedding_filters(subject.model, min(_NUM_FILTERS, num_filters(subject.model)))
        np.savez_compressed(findings.folder / "filters.npz", filters=filters)
        findings.save("filters", plots.plot_filters(filters), f"the first {len(filters)} principal components")


def _write_positions(findings, subjects):
    similarities = {}
    for subject in subjects:
        with findings.trying("position_similarity"):
            similarities[subject.name] = keras_vit.position_similarity(subject.model)
    if similarities:
        # Keys are numbered, because np.savez would take a name such as "file" for an argument.
        numbered = {f"similarity_{i}": array for i, array in enumerate(similarities.values(), start=1)}
        np.savez_compressed(findings.folder / "position_similarity.npz", names=np.array([*similarities]), **numbered)  # type: ignore[arg-type]
        figure = plots.plot_position_similarity(similarities)
        findings.save("position_similarity", figure, "cosine similarity of the positions of every two patches")


def _write_heads(findings, subjects, pictures, examples):
    """Attention distances and entropies of all models, averaged over the same images."""
    for subject in subjects:
        with findings.trying("attention_distance"):
            images = _averaged_images(subject, pictures, examples)
            findings.num_averaged, findings.averaged_are_pictures = len(images), examples is None
            prepared = subject.prepared(images)
            findings.distances[subject.name] = keras_vit.mean_attention_distance(subject.model, prepared)
            findings.entropies[subject.name] = keras_vit.attention_entropy(subject.model, prepared)
            weights = keras_vit.attention_maps(subject.model, prepared[:1], queries=[0])
            findings.num_tokens[subject.name] = weights.shape[-1]
    if not findings.distances:
        return
    _write_head_table(findings.folder / "attention_distance.csv", "distance_pixels", findings.distances)
    _write_head_table(findings.folder / "attention_entropy.csv", "entropy_nats", findings.entropies)
    figure = plots.plot_attention_distance(findings.distances)
    findings.save("attention_distance", figure, "mean attention distance of every head, by depth")
    figure = plots.plot_attention_entropy(findings.entropies, findings.num_tokens)
    findings.save("attention_entropy", figure, "mean attention entropy of every head, by depth")


def _averaged_images(subject, pictures, examples):
    """The images over which attention is averaged, decoded to the input size of the model."""
    if examples is None:
        return np.stack([subject.decode(content) for content in pictures.contents[:_NUM_AVERAGED]])
    images, _ = examples.spread(subject.decode, _NUM_AVERAGED)
    return np.stack([pixels for pixels, _ in images.as_numpy_iterator()])


def _write_head_table(path, name, values):
    rows = [
        (model, layer, head, value)
        for model, array in values.items()
        for (layer, head), value in zip((np.argwhere(np.ones_like(array)) + 1).tolist(), array.ravel(), strict=True)
    ]
    write_csv(path, [("model", "layer", "head", name), *rows])


def _write_rollouts(findings, pictures, compute):
    with findings.trying("rollout"):
        findings.rollouts = compute()
        np.savez_compressed(findings.folder / "rollout.npz", rollout=findings.rollouts, names=np.array(pictures.names))
        figure = plots.plot_rollout(pictures.covered[:_MOST_PAIRS], findings.rollouts[:_MOST_PAIRS])
        findings.save("rollout", figure, "each picture beside its product with its attention rollout")


def _write_neighbours(findings, subject, pictures, examples, count):
    images, training_indices = examples.spread(subject.decode, _NUM_SEARCHED)
    gallery = (subject.prepared(pixels) for pixels, _ in images.batch(_BATCH_SIZE).as_numpy_iterator())
    with findings.trying("neighbours"):
        count = min(count, len(training_indices))
        prepared = subject.prepared(pictures.pixels)
        indices, similarities = keras_vit.nearest_neighbours(subject.model, prepared, gallery, count, _BATCH_SIZE)
        wanted = set(indices.ravel().tolist())
        nearest = {i: example for i, example in enumerate(images.as_numpy_iterator()) if i in wanted}
        names = [[examples.name(nearest[i][1]) for i in row] for row in indices.tolist()]
        rows = [
            (picture, rank + 1, training_indices[index], names[row][rank], similarities[row, rank])
            for row, picture in enumerate(pictures.names)
            for rank, index in enumerate(indices[row].tolist())
        ]
        header = ("picture", "rank", "training_image", "class", "similarity")
        write_csv(findings.folder / "neighbours.csv", [header, *rows])
        shown = [[nearest[i][0] for i in row] for row in indices[:_MOST_ROWS].tolist()]
        captions = list(zip(pictures.names, names, strict=True))[:_MOST_ROWS]
        figure = plots.plot_neighbours(pictures.pixels[:_MOST_ROWS], shown, similarities[:_MOST_ROWS], captions)
        findings.save("neighbours", figure, "each picture beside the training images most similar to it")


def _explain_saved_model(saved_model, images, path, compare):
    """Explains an exported SavedModel with the rollout of its `explain` signature."""
    if compare:
        raise InputError("--compare works with a run or a .keras file: an exported SavedModel has a rollout only.")
    facts_file = saved_model / "keras_vit.json"
    serve = tf.saved_model.load(str(saved_model)).signatures.get("explain")
    if serve is None or not facts_file.is_file():
        raise InputError(
            f"{saved_model} has no signature 'explain' of keras_vit. Give the run's folder, or a .keras file."
        )
    subject = _served_subject(json.loads(facts_file.read_text()))
    paths = [pathlib.Path(image) for image in images]
    if not paths:
        raise InputError("An exported SavedModel contains no pictures. Name image files after it.")
    folder = _make_folder(path or "explain")
    pictures = _read_pictures(subject, paths)
    findings = Findings(folder)
    _write_rollouts(findings, pictures, lambda: _served_rollouts(serve, pictures.contents))
    findings.left_out["attention"] = "An exported SavedModel has a rollout, but not the attention of single heads."
    return write_page(folder / "explain.html", subject, pictures, findings), pictures.num_unreadable


def _served_subject(facts):
    """The `Subject` of a SavedModel. Its model is the preprocessing only, which is enough to decode images."""
    preprocessing = keras_vit.Preprocessing(**facts["preprocessing"])
    protocol = keras.Sequential([keras.Input(facts["input_shape"]), preprocessing])
    decode = image_decoder(protocol, facts["options"]["image_size"])
    return Subject(facts["name"], protocol, decode, _stride(read_architecture(facts["config"])))


def _served_rollouts(serve, contents):
    starts = range(0, len(contents), _ROLLOUT_BATCH_SIZE)
    parts = [tf.constant(contents[start : start + _ROLLOUT_BATCH_SIZE]) for start in starts]
    return np.concatenate([serve(image_bytes=part)["rollout"].numpy() for part in parts])
