"""Writes figures, their data and an HTML page that show how a trained model processes a user's pictures.

Shapes: N pictures, images (H, W, C), a grid of h x w patches, L layers, K heads.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit import graph
from keras_vit.analysis import plots
from keras_vit.analysis.embeddings import num_filters
from keras_vit.architectures import VTResNetConfig, read_architecture
from keras_vit.data.decoding import image_decoder
from keras_vit.heads import segments
from keras_vit.outputs import output_of
from training import recipes
from training.data.images import read_image
from training.data.sources import IndexedSource, StreamedSource
from training.data.subsets import select
from training.errors import InputError, without_queries
from training.files import make_folder, write_csv
from training.inspection.predict import find_saved_model
from training.reports.explain_page import Findings, write_page
from training.runs.folder import Run, load_model
from training.runs.opening import load_data, open_pair, open_source
from training.tasks import TASKS
from training.tasks.task import DenseTask, Task

_BATCH_SIZE = 64
_ROLLOUT_BATCH_SIZE = 8  # Small, because a rollout keeps the attention of all layers in memory.
_NUM_AVERAGED = 128  # Maximum number of images over which attention distances are averaged (ViT, figure 7).
_NUM_SEARCHED = 2000  # Maximum number of training images that are searched for neighbours.
_MOST_ROWS = 12  # Maximum number of rows in the figures of neighbours and tokens. The data files contain all rows.
_MOST_PAIRS = 40  # Maximum number of pairs in the figure of rollouts. The data file contains all pairs.
_NUM_FILTERS = 28
_MOST_OBJECTS = 3  # Maximum number of objects of a picture in the figure of queries.
_ANOTHER_FOLDER = "Name another folder with --path."


def explain(source, images=(), path=None, compare=(), neighbours=5, image_size=None, texts=()):
    """Writes figures of the attention and the weights of a model, and the page `explain.html`.

    Args:
        source: A run's folder, a `.keras` file, an exported SavedModel (for the rollout only), or weights as in
            `keras_vit.from_pretrained`, such as a name in the catalogue.
        images: Paths of image files. Default: the run's samples. Unreadable files are reported and skipped.
        path: Folder to write to. Default: `figures/explain` in the run's folder or beside the `.keras` file. For
            weights and a SavedModel: `explain` in the working directory.
        compare: More runs, `.keras` files or weights. The figures of attention distances, of attention entropies
            and of positions show these models, too.
        neighbours: Number of training images of the run that are shown beside each picture, the most similar first.
            0: the run's data set is not read. Attention distances are then averaged over the pictures.
        image_size: (height, width) to which images are resized, for models of variable input size.
        texts: Texts that are searched in the pictures, if the model is an image-text model.

    Returns:
        The path of the page, and the number of unreadable images.

    Raises:
        InputError: If there is no model or no readable picture, or the folder cannot be created.
    """
    location = pathlib.Path(source)
    run: Run | None = Run(location.parent if location.suffix == ".keras" else location)
    if location.suffix != ".keras" and not Run(location).recipe.is_file():
        run = None
        try:
            saved_model = find_saved_model(source)
        except InputError:  # The source is the name or the path of weights.
            pass
        else:
            if texts:
                raise InputError(f"--texts needs an image-text model, such as CLIP. {source} is a SavedModel.")
            return _explain_saved_model(saved_model, images, path, compare)
    subject, *compared = _subjects([source, *compare], image_size, bool(texts))
    if texts and subject.pair is None:
        raise InputError(f"--texts needs an image-text model, such as CLIP. {source} is none.")
    if texts and subject.pair.tokenizer is None:
        raise InputError(f"--texts needs a tokenizer, but {source} has none. Put its file beside the weights.")
    if not all(text.strip() for text in texts):
        raise InputError(f"--texts must not be empty. Received: {', '.join(map(repr, texts))}")
    if compared and _has_tokens(subject):
        raise InputError(
            "--compare works with Vision Transformers only. A VT-ResNet has only figures of filters, tokens and "
            "neighbours. Leave --compare out."
        )
    pictures = _read_pictures(subject, images or (sorted(run.samples.glob("*")) if run else ()))
    examples = _training_examples(run) if neighbours and run is not None and run.folder == location else None
    folder = pathlib.Path(path or (run.figures / "explain" if run else "explain"))
    make_folder(folder, _ANOTHER_FOLDER)
    findings = Findings(folder)
    if texts:
        _write_texts(findings, subject, pictures, texts)
    _write_filters(findings, subject)
    if _has_tokens(subject):
        _write_tokens(findings, subject, pictures)
    else:
        if output_of(subject.model).kind == "masks":
            _write_queries(findings, subject, pictures)
        _write_positions(findings, [subject, *compared])
        _write_heads(findings, [subject, *compared], pictures, examples)
        compute = functools.partial(subject.analyse, keras_vit.attention_rollout)
        _write_rollouts(findings, pictures, compute, pictures.pixels)
    if examples is not None and not isinstance(examples.task, DenseTask):  # They have no vector of an image.
        _write_neighbours(findings, subject, pictures, examples, neighbours)
    return write_page(folder / "explain.html", subject, pictures, findings), pictures.num_unreadable


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model to inspect. `decode` turns an encoded image into pixels at the model's input size.

    The model crops images to multiples of `stride` (rows, columns), the size of a patch. `(1, 1)`: no cropping.
    `pair` is the image-text model whose image encoder is inspected, or `None`."""

    name: str
    model: keras.Model
    decode: Callable
    stride: tuple[int, int] = (1, 1)
    pair: keras_vit.ImageTextModel | None = None

    def prepared(self, pixels):
        """Normalises pixels for the model, unless the model does so itself."""
        return keras_vit.preprocess_input(pixels, self.model)

    def analyse(self, analysis, pixels):
        return analysis(self.model, self.prepared(pixels))


@dataclasses.dataclass(frozen=True)
class Pictures:
    """The user's images. `contents` are the bytes of the files. `pixels` are uint8 (N, H, W, C) at the model's input
    size. `covered` are the pixels that the model uses, without cropped margins."""

    names: list[str]
    contents: list[bytes]
    pixels: np.ndarray
    covered: np.ndarray
    num_unreadable: int


@dataclasses.dataclass(frozen=True)
class _Examples:
    """The training images of a run, as its task loads them."""

    task: Task
    class_names: tuple[str, ...]
    source: IndexedSource | StreamedSource

    def evenly_spaced(self, decode, count):
        """A `tf.data.Dataset` (pixels, label) of at most `count` evenly spaced images, and the images' indices."""
        indices = np.linspace(0, self.source.size - 1, min(count, self.source.size)).astype(int)
        examples = select(self.source, indices).in_order()

        @tf.autograph.experimental.do_not_convert  # Converting takes a second.
        def read(example):
            return decode(example["image"]), example[self.task.annotation]

        return examples.map(read, tf.data.AUTOTUNE), indices

    def name(self, annotation):
        """The annotation of an image as text."""
        return self.task.label_text(annotation, self.class_names)


def _subjects(sources, image_size, is_first_pair):
    paths = [pathlib.Path(source) for source in sources]
    public_names = [without_queries(str(source)) for source in sources]
    names = [
        path.stem if path.suffix == ".keras" else path.resolve().name if path.exists() else name
        for path, name in zip(paths, public_names, strict=True)
    ]
    if len(set(names)) < len(names):
        names = public_names
    subjects = []
    for name, path, source in zip(names, paths, sources, strict=True):
        # `open_source` would refuse models that expect normalised pixels.
        model, pair = _open(path, source, is_first_pair and source is sources[0])
        config = keras_vit.describe(model).config
        if output_of(model).kind == "class_map" and not isinstance(config, keras_vit.ViTConfig):
            raise InputError(f"explain works with classifiers and with heads on a ViT. {source} is neither of them.")
        try:
            decode = image_decoder(model, image_size)
            subjects.append(Subject(name, model, decode, _stride(config), pair))
        except ValueError as error:
            message = str(error).replace("image_size=(height, width)", "--image-size H W")
            raise InputError(f"{source}: {message}") from None
    return subjects


def _open(path, source, is_pair):
    """A model to inspect, and the image-text model whose image encoder it is, or `None`."""
    if path.suffix == ".keras":
        model = load_model(path)
    elif is_pair and not Run(path).recipe.is_file():
        model = open_pair(source)
    else:
        model = open_source(source).model
    return (model.image_encoder, model) if isinstance(model, keras_vit.ImageTextModel) else (model, None)


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
        raise InputError("There is no readable picture. Add the paths of image files to the command, after the model.")
    stacked = np.stack(pixels)
    height, width = (size - size % side for size, side in zip(stacked.shape[1:3], subject.stride, strict=True))
    return Pictures(names, contents, stacked, stacked[:, :height, :width], unreadable)


def _training_examples(run):
    """The training images of a run. If they cannot be loaded, prints the reason and returns `None`."""
    try:
        recipe = recipes.load(str(run.recipe))
        task = TASKS[recipe.task](recipe)
        dataset = load_data(task.load, run)
    except InputError as error:
        print(f"The run's training images are left out: {error}")
        return None
    return _Examples(task, dataset.class_names, dataset.splits["train"]) if "train" in dataset.splits else None


def _has_tokens(subject):
    return isinstance(keras_vit.describe(subject.model).config, VTResNetConfig)


def _in_batches(compute, images):
    starts = range(0, len(images), _ROLLOUT_BATCH_SIZE)
    return np.concatenate([compute(images[start : start + _ROLLOUT_BATCH_SIZE]) for start in starts])


def _write_tokens(findings, subject, pictures):
    with findings.trying("tokens"):
        lineage = _in_batches(functools.partial(subject.analyse, keras_vit.token_lineage), pictures.pixels)
        np.savez_compressed(findings.folder / "tokens.npz", names=np.array(pictures.names), lineage=lineage)
        figure = plots.plot_token_maps(pictures.pixels[:_MOST_ROWS], lineage[:_MOST_ROWS, -1])
        findings.save("tokens", figure, "each picture beside the origin of its visual tokens")


def _write_queries(findings, subject, pictures):
    """Writes the attention of the queries of the most certain objects in each picture."""
    with findings.trying("queries"):
        attention = _in_batches(functools.partial(subject.analyse, keras_vit.query_attention), pictures.pixels)
        masks, objects = subject.model.predict(subject.prepared(pictures.pixels), _BATCH_SIZE, verbose=0).values()
        _, classes, scores = map(graph.to_array, segments.instances(masks, objects))
        names = np.array(pictures.names)
        arrays = {"attention": attention, "classes": classes, "scores": scores, "names": names}
        np.savez_compressed(findings.folder / "queries.npz", **arrays)
        best = np.argsort(-scores, axis=1)[:, :_MOST_OBJECTS]
        chosen = [(picture, query) for picture, row in enumerate(best.tolist()) for query in row][:_MOST_ROWS]
        shown = []
        for picture, query in chosen:
            image = pictures.pixels[picture]
            inside = plots.enlarge(masks[picture, ..., query], image.shape[:2]) > 0
            shown.append(np.where(inside[..., None], image, image // 4))
        maps = np.stack([attention[picture, :, query] for picture, query in chosen])
        findings.save("queries", plots.plot_token_maps(shown, maps, title="block"), "objects and attention of queries")


def _write_texts(findings, subject, pictures, texts):
    """Writes where each text is in each picture."""
    with findings.trying("texts"):
        maps = _in_batches(lambda pixels: subject.pair.text_maps(subject.prepared(pixels), texts), pictures.pixels)
        names = np.array(pictures.names)
        np.savez_compressed(findings.folder / "texts.npz", maps=maps, texts=np.array(texts), names=names)
        low, high = maps.min(axis=(2, 3), keepdims=True), maps.max(axis=(2, 3), keepdims=True)
        shown = ((maps - low) / np.maximum(high - low, 1e-6))[:_MOST_ROWS]
        figure = plots.plot_token_maps(pictures.covered[:_MOST_ROWS], shown, len(texts), title=texts)
        findings.save("texts", figure, f"where these texts are: {', '.join(texts)}")


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
        # The keys are numbered, because np.savez would treat a name such as "file" as its own argument.
        numbered = {f"similarity_{i}": array for i, array in enumerate(similarities.values(), start=1)}
        np.savez_compressed(findings.folder / "position_similarity.npz", names=np.array([*similarities]), **numbered)  # type: ignore[arg-type]
        figure = plots.plot_position_similarity(similarities)
        findings.save("position_similarity", figure, "cosine similarities of the patches' position embeddings")


def _write_heads(findings, subjects, pictures, examples):
    """Writes the attention distances and entropies of all models, averaged over the same images."""
    for subject in subjects:
        with findings.trying("attention_distance"):
            if examples is None:
                images = np.stack([subject.decode(content) for content in pictures.contents[:_NUM_AVERAGED]])
            else:
                pairs, _ = examples.evenly_spaced(subject.decode, _NUM_AVERAGED)
                images = np.stack([pixels for pixels, _ in pairs.as_numpy_iterator()])
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


def _write_head_table(path, name, values):
    rows = [
        (model, layer, head, value)
        for model, array in values.items()
        for (layer, head), value in zip((np.argwhere(np.ones_like(array)) + 1).tolist(), array.ravel(), strict=True)
    ]
    write_csv(path, [("model", "layer", "head", name), *rows])


def _write_rollouts(findings, pictures, compute, images):
    with findings.trying("rollout"):
        findings.rollouts = _in_batches(compute, images)
        np.savez_compressed(findings.folder / "rollout.npz", rollout=findings.rollouts, names=np.array(pictures.names))
        figure = plots.plot_rollout(pictures.covered[:_MOST_PAIRS], findings.rollouts[:_MOST_PAIRS])
        findings.save("rollout", figure, "each picture, and beside it the picture multiplied by its attention rollout")


def _write_neighbours(findings, subject, pictures, examples, count):
    images, training_indices = examples.evenly_spaced(subject.decode, _NUM_SEARCHED)
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
        raise InputError("--compare works with a run or a .keras file. An exported SavedModel provides only a rollout.")
    info_file = saved_model / "keras_vit.json"
    serve = tf.saved_model.load(str(saved_model)).signatures.get("explain")
    if serve is None or not info_file.is_file():
        raise InputError(
            f"{saved_model} has no keras_vit.json or no signature 'explain'. Give the run's folder, or a .keras file."
        )
    info = json.loads(info_file.read_text())
    # The model contains only the preprocessing, which is enough for decoding.
    model = keras.Sequential([keras.Input(info["input_shape"]), keras_vit.Preprocessing(**info["preprocessing"])])
    decode = image_decoder(model, info["options"]["image_size"])
    subject = Subject(info["name"], model, decode, _stride(read_architecture(info["config"])))
    if not images:
        raise InputError("An exported SavedModel contains no pictures. Add the paths of image files to the command.")
    folder = pathlib.Path(path or "explain")
    make_folder(folder, _ANOTHER_FOLDER)
    pictures, findings = _read_pictures(subject, images), Findings(folder)

    def compute(contents):
        return serve(image_bytes=tf.constant(contents))["rollout"].numpy()

    _write_rollouts(findings, pictures, compute, pictures.contents)
    findings.left_out["attention"] = "An exported SavedModel has a rollout, but not the attention of single heads."
    return write_page(folder / "explain.html", subject, pictures, findings), pictures.num_unreadable
