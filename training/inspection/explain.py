"""Looking inside a trained model: figures, the numbers behind them, and a page, for a user's own pictures.

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
from training.data.subsets import select
from training.errors import InputError, without_queries
from training.inspection.predict import find_saved_model
from training.reports.explain_page import Findings, write_page
from training.reports.tables import write_csv
from training.runs.folder import Run, load_model
from training.runs.opening import open_model

_BATCH_SIZE = 64  # Of what passes layer by layer. A rollout keeps all layers.
_ROLLOUT_BATCH_SIZE = 8
_NUM_AVERAGED = 128  # Images that attention distances are averaged over (ViT, figure 7).
_NUM_SEARCHED = 2000  # Training images among which neighbours are looked for.
_MOST_ROWS = 12  # In a picture of neighbours; the table has all.
_MOST_PAIRS = 40  # In a picture of rollouts; the arrays have all.
_NUM_FILTERS = 28


def explain(source, images=(), path=None, compare=(), neighbours=5, image_size=None):
    """Writes figures of what a model attends to and has learned, and the page `explain.html`.

    Args:
        source: A run's folder; a `.keras` file; weights as `keras_vit.from_pretrained` takes them, a name in the
            catalogue among them; or an exported SavedModel, of which only the rollout can be seen.
        images: Paths of image files; by default the run's samples. Those that cannot be read are named.
        path: Folder to write to; by default `figures/explain` in the run's folder or beside the `.keras` file, and
            `explain` here for weights and a SavedModel.
        compare: More runs, `.keras` files or weights, which stand beside the model in the figures of distance,
            entropy and positions.
        neighbours: How many of the run's training images are shown that are most like each picture. 0: none, and the
            run's data set is not read at all.
        image_size: (height, width) that images are brought to, for models of variable input size.

    Returns:
        The path of the page, and how many images could not be read.

    Raises:
        InputError: If there is no model, no picture that can be read, or no place to write to; the message says what
            to do.
    """
    run = _run_of(source)
    saved_model = None if run else _saved_model(source)
    if saved_model:
        return _explain_saved_model(saved_model, images, path, compare)
    subject, *others = _subjects([source, *compare], image_size)
    if others and _has_tokens(subject):
        raise InputError(
            "--compare sets Vision Transformers side by side: of a VT-ResNet filters, tokens and neighbours are shown. "
            "Leave it out."
        )
    pictures = _read_pictures(subject, images or (sorted(run.samples.glob("*")) if run else ()))
    is_run = run is not None and run.folder == pathlib.Path(source)
    examples = _training_examples(run) if is_run and neighbours else None
    folder = _make_folder(path or (run.figures / "explain" if run else "explain"))
    findings = _look(folder, [subject, *others], pictures, examples, neighbours)
    return write_page(folder / "explain.html", subject, pictures, findings), pictures.num_unreadable


def _run_of(source):
    """The run that a folder is, or that a `.keras` file lies in; `None` for anything else."""
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
    """A model that is looked into: its name, the function from encoded images to its pixels, and how many of these,
    (rows, columns), make a patch where the rest is cut off; `(1, 1)`: none is."""

    name: str
    model: keras.Model
    decode: Callable
    stride: tuple[int, int] = (1, 1)

    def prepared(self, pixels):
        """Pixels as the model takes them."""
        return keras_vit.preprocess_input(pixels, self.model)


@dataclasses.dataclass(frozen=True)
class Pictures:
    """The user's images: names, the files' contents, pixels uint8 (N, H, W, C) as the model sees them, the part of
    these that its patches cover, and how many files could not be read."""

    names: list[str]
    contents: list[bytes]
    pixels: np.ndarray
    covered: np.ndarray
    num_unreadable: int


@dataclasses.dataclass(frozen=True)
class _Examples:
    """The training images of a run, as `training.data.loading` gives them."""

    class_names: tuple[str, ...]
    source: object

    def spread(self, decode, count):
        """At most `count` images, spread evenly: a `tf.data.Dataset` of (pixels, label), and their indices."""
        indices = np.linspace(0, self.source.size - 1, min(count, self.source.size)).astype(int)
        examples = select(self.source, indices).in_order()
        return examples.map(lambda example: (decode(example["image"]), example["label"]), tf.data.AUTOTUNE), indices

    def name(self, label):
        """The name of a right class, or of all of them."""
        return " or ".join(self.class_names[index] for index in np.atleast_1d(label))


def _subjects(sources, image_size):
    names = [_name(source) for source in sources]
    if len(set(names)) < len(names):
        names = [without_queries(str(source)) for source in sources]
    found = []
    for name, source in zip(names, sources, strict=True):
        model = _load(source)
        if is_segmenter(model):
            raise InputError(f"explain looks into classifiers, and {source} says of each pixel what it belongs to.")
        try:
            decode, config = image_decoder(model, image_size), keras_vit.describe(model).config
            found.append(Subject(name, model, decode, _stride(config)))
        except ValueError as error:
            message = str(error).replace("image_size=(height, width)", "--image-size H W")
            raise InputError(f"{source}: {message}") from None
    return found


def _name(source):
    path = pathlib.Path(source)
    if path.suffix == ".keras":
        return path.stem
    return path.resolve().name if path.exists() else without_queries(str(source))


def _load(source):
    path = pathlib.Path(source)
    if path.suffix == ".keras":  # Here it may take normalised pixels.
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
        raise InputError("There is no picture to look at. Name image files that can be read, after the model.")
    pixels = np.stack(pixels)
    return Pictures(names, contents, pixels, _covered(pixels, subject.stride), unreadable)


def _covered(pixels, stride):
    """Without what does not fill a patch."""
    height, width = (size - size % side for size, side in zip(pixels.shape[1:3], stride, strict=True))
    return pixels[:, :height, :width]


def _training_examples(run):
    """The training images of a run, or `None` if they are not to be had, which is said."""
    try:
        dataset = load_dataset(recipes.load(str(run.recipe)).data)
    except InputError as error:
        print(f"Without the run's training images: {error}")
        return None
    return _Examples(dataset.class_names, dataset.splits["train"]) if "train" in dataset.splits else None


def _make_folder(path):
    folder = pathlib.Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made: {error.strerror}. Name another folder with --path.") from None
    return folder


def _look(folder, subjects, pictures, examples, neighbours):
    """Writes every figure that the models have, and returns what the page shows."""
    subject, findings = subjects[0], Findings(folder)
    _filters(findings, subject)
    if _has_tokens(subject):
        _tokens(findings, subject, pictures)
    else:
        _positions(findings, subjects)
        _heads(findings, subjects, pictures, examples)
        _rollouts(findings, pictures, lambda: _in_batches(subject, pictures, keras_vit.attention_rollout))
    if examples is not None:
        _neighbours(findings, subject, pictures, examples, neighbours)
    return findings


def _has_tokens(subject):
    return isinstance(keras_vit.describe(subject.model).config, VTResNetConfig)


def _in_batches(subject, pictures, analysis):
    starts = range(0, len(pictures.pixels), _ROLLOUT_BATCH_SIZE)
    parts = [pictures.pixels[start : start + _ROLLOUT_BATCH_SIZE] for start in starts]
    return np.concatenate([analysis(subject.model, subject.prepared(part)) for part in parts])


def _tokens(findings, subject, pictures):
    with findings.trying("tokens"):
        lineage = _in_batches(subject, pictures, keras_vit.token_lineage)
        np.savez_compressed(findings.folder / "tokens.npz", names=np.array(pictures.names), lineage=lineage)
        figure = plots.plot_token_maps(pictures.pixels[:_MOST_ROWS], lineage[:_MOST_ROWS, -1])
        findings.save("tokens", figure, "each picture beside what its visual tokens stand for")


def _filters(findings, subject):
    with findings.trying("filters"):
        filters = keras_vit.embedding_filters(subject.model, min(_NUM_FILTERS, num_filters(subject.model)))
        np.savez_compressed(findings.folder / "filters.npz", filters=filters)
        findings.save("filters", plots.plot_filters(filters), f"the first {len(filters)} principal components")


def _positions(findings, subjects):
    found = {}
    for subject in subjects:
        with findings.trying("position_similarity"):
            found[subject.name] = keras_vit.position_similarity(subject.model)
    if found:
        # By number, for a name such as "file" would be taken for an argument.
        numbered = {f"similarity_{number}": similarity for number, similarity in enumerate(found.values(), start=1)}
        np.savez_compressed(findings.folder / "position_similarity.npz", names=np.array([*found]), **numbered)
        figure = plots.plot_position_similarity(found)
        findings.save("position_similarity", figure, "cosine similarity of the positions of every two patches")


def _heads(findings, subjects, pictures, examples):
    """Distances and entropies of the attention of all models, over the same images."""
    for subject in subjects:
        with findings.trying("attention_distance"):
            images = _averaged(subject, pictures, examples)
            findings.num_averaged, findings.averaged_are_pictures = len(images), examples is None
            prepared = subject.prepared(images)
            findings.distances[subject.name] = keras_vit.mean_attention_distance(subject.model, prepared)
            findings.entropies[subject.name] = keras_vit.attention_entropy(subject.model, prepared)
            asked = keras_vit.attention_maps(subject.model, prepared[:1], queries=[0])
            findings.num_tokens[subject.name] = asked.shape[-1]
    if not findings.distances:
        return
    _write_heads(findings.folder / "attention_distance.csv", "distance_pixels", findings.distances)
    _write_heads(findings.folder / "attention_entropy.csv", "entropy_nats", findings.entropies)
    figure = plots.plot_attention_distance(findings.distances)
    findings.save("attention_distance", figure, "mean attention distance of every head, by depth")
    figure = plots.plot_attention_entropy(findings.entropies, findings.num_tokens)
    findings.save("attention_entropy", figure, "mean attention entropy of every head, by depth")


def _averaged(subject, pictures, examples):
    """The images that attention is averaged over, as pixels that the model itself decoded."""
    if examples is None:
        return np.stack([subject.decode(content) for content in pictures.contents[:_NUM_AVERAGED]])
    images, _ = examples.spread(subject.decode, _NUM_AVERAGED)
    return np.stack([pixels for pixels, _ in images.as_numpy_iterator()])


def _write_heads(path, name, values):
    rows = [
        (model, layer, head, value)
        for model, array in values.items()
        for (layer, head), value in zip((np.argwhere(np.ones_like(array)) + 1).tolist(), array.ravel(), strict=True)
    ]
    write_csv(path, [("model", "layer", "head", name), *rows])


def _rollouts(findings, pictures, compute):
    with findings.trying("rollout"):
        findings.rollouts = compute()
        np.savez_compressed(findings.folder / "rollout.npz", rollout=findings.rollouts, names=np.array(pictures.names))
        figure = plots.plot_rollout(pictures.covered[:_MOST_PAIRS], findings.rollouts[:_MOST_PAIRS])
        findings.save("rollout", figure, "pictures, and each multiplied with its attention rollout")


def _neighbours(findings, subject, pictures, examples, count):
    images, training_indices = examples.spread(subject.decode, _NUM_SEARCHED)
    gallery = (subject.prepared(pixels) for pixels, _ in images.batch(_BATCH_SIZE).as_numpy_iterator())
    with findings.trying("neighbours"):
        count = min(count, len(training_indices))
        prepared = subject.prepared(pictures.pixels)
        indices, similarities = keras_vit.nearest_neighbours(subject.model, prepared, gallery, count, _BATCH_SIZE)
        wanted = set(indices.ravel().tolist())
        found = {i: example for i, example in enumerate(images.as_numpy_iterator()) if i in wanted}
        names = [[examples.name(found[i][1]) for i in row] for row in indices.tolist()]
        rows = [
            (picture, rank + 1, training_indices[index], names[row][rank], similarities[row, rank])
            for row, picture in enumerate(pictures.names)
            for rank, index in enumerate(indices[row].tolist())
        ]
        header = ("picture", "rank", "training_image", "class", "similarity")
        write_csv(findings.folder / "neighbours.csv", [header, *rows])
        shown = [[found[i][0] for i in row] for row in indices[:_MOST_ROWS].tolist()]
        captions = list(zip(pictures.names, names, strict=True))[:_MOST_ROWS]
        figure = plots.plot_neighbours(pictures.pixels[:_MOST_ROWS], shown, similarities[:_MOST_ROWS], captions)
        findings.save("neighbours", figure, "each picture beside the training images most like it")


def _explain_saved_model(saved_model, images, path, compare):
    """What an export can give: the rollout of its `explain` signature."""
    if compare:
        raise InputError("--compare goes with a run or a .keras file: an exported SavedModel shows its rollout alone.")
    facts_file = saved_model / "keras_vit.json"
    serve = tf.saved_model.load(str(saved_model)).signatures.get("explain")
    if serve is None or not facts_file.is_file():
        raise InputError(
            f"{saved_model} has no signature 'explain' of keras_vit. Give the run's folder, or a .keras file."
        )
    subject = _served_subject(json.loads(facts_file.read_text()))
    paths = [pathlib.Path(image) for image in images]
    if not paths:
        raise InputError("An exported SavedModel has no pictures of its own. Name image files after it.")
    folder = _make_folder(path or "explain")
    pictures = _read_pictures(subject, paths)
    findings = Findings(folder)
    _rollouts(findings, pictures, lambda: _served(serve, pictures.contents))
    findings.left_out["attention"] = "An exported SavedModel gives its rollout, and not the attention of single heads."
    return write_page(folder / "explain.html", subject, pictures, findings), pictures.num_unreadable


def _served_subject(facts):
    """Of a SavedModel: a model of nothing but the preprocessing, for what decodes images asks for no more."""
    preprocessing = keras_vit.Preprocessing(**facts["preprocessing"])
    protocol = keras.Sequential([keras.Input(facts["input_shape"]), preprocessing])
    decode = image_decoder(protocol, facts["options"]["image_size"])
    return Subject(facts["name"], protocol, decode, _stride(read_architecture(facts["config"])))


def _served(serve, contents):
    starts = range(0, len(contents), _ROLLOUT_BATCH_SIZE)
    parts = [tf.constant(contents[start : start + _ROLLOUT_BATCH_SIZE]) for start in starts]
    return np.concatenate([serve(image_bytes=part)["rollout"].numpy() for part in parts])
