"""Evaluation of image-text models. Shapes: N examples, n images, m texts, H W image."""

import dataclasses
import hashlib

import numpy as np

from keras_vit.text.image_text_model import divided_by_length
from training.data.pipeline import read_once
from training.data.samples import sample_decoder
from training.data.subsets import select
from training.errors import InputError
from training.evaluation.metrics import evenly_spaced
from training.evaluation.outputs import Predictions

NUM_EXAMPLES = 8
RANKS = (1, 5, 10)
_CHUNK = 256  # Number of images whose similarities with all texts are in memory.


@dataclasses.dataclass(frozen=True)
class Retrieval:
    """How often an image-text model finds the text of an image and the image of a text, by cosine similarity.

    `of_texts` is {k: share of the images with a text of their own among the k most similar texts}, and `of_images` is
    {k: share of the texts whose image is among the k most similar images}. Equal images are one image, and equal texts
    are one text. `chance` is the expected share at k = 1 for random embeddings. `examples` and `worst` are {index of an
    image: (pixels from 0 to 255 (H, W, channels), a text of the image, the most similar text)}: images that are evenly
    spaced, and those whose texts have the worst ranks. If the most similar text is right, both texts are the same.
    """

    of_texts: dict[int, float]
    of_images: dict[int, float]
    num_images: int
    num_texts: int
    chance: float
    examples: dict[int, tuple]
    worst: dict[int, tuple]

    def __str__(self):
        return f"recall at 1 {self.of_texts[1]:.2%} ({self.num_images:,} images, {self.num_texts:,} texts)"


def evaluate(model, dataset, splits, recipe):
    """Evaluates an image-text model on one split, or on several splits together.

    Args:
        model: `keras_vit.ImageTextModel` with a tokenizer.
        dataset: `training.data.dataset.Dataset` whose annotation is `text`.
        splits: Name of the split, or a list of names.
        recipe: `training.recipe.config.Recipe`

    Returns:
        A `Retrieval`.
    """
    rows, first_rows, images, texts = [], {}, [], {}
    predictions = Predictions(model.image_encoder, dataset, splits, lambda sample: sample["text"], recipe)
    for first, pixels, labels, vectors in predictions:
        for row, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            digest = hashlib.sha256(image.tobytes()).digest()
            if digest not in first_rows:
                first_rows[digest] = len(images), first + row
                images.append(vectors[row])
            rows.append((first_rows[digest][0], texts.setdefault(label.decode(), len(texts))))
    image, text = divided_by_length(np.stack(images).astype("float32")), model.text_embeddings(list(texts))
    if not (np.isfinite(image).all() and np.isfinite(text).all()):
        raise InputError("The model returns embeddings that are not finite. Its training has diverged.")
    pairs = np.array(rows)
    ranks, found = _ranks(image, text, pairs)
    ranks_of_images, _ = _ranks(text, image, pairs[:, ::-1])
    own = dict(rows[::-1])  # The first text of each image, or the one that was found.
    own |= {index: best for index, best in enumerate(found.tolist()) if (index, best) in set(rows)}
    chosen = {
        "examples": sorted(evenly_spaced(NUM_EXAMPLES, len(image))),
        "worst": np.argsort(-ranks, kind="stable")[:NUM_EXAMPLES].tolist(),
    }
    names, examples = list(texts), [index for _, index in first_rows.values()]
    pictures = _pictures(
        model, dataset, splits, [examples[index] for indices in chosen.values() for index in indices], recipe
    )
    shown = {
        name: {index: (pictures[examples[index]], names[own[index]], names[found[index]]) for index in indices}
        for name, indices in chosen.items()
    }
    of_texts, of_images = ({most: float((each < most).mean()) for most in RANKS} for each in (ranks, ranks_of_images))
    chance = len(set(rows)) / len(image) / len(text)
    return Retrieval(of_texts, of_images, len(image), len(text), chance, shown["examples"], shown["worst"])


def _ranks(queries, others, pairs):
    """How many other vectors are as similar to a query as its own, and the index of the most similar one, (n,) each.

    Args:
        queries: (n, E)
        others: (m, E)
        pairs: Indices of queries and of vectors that belong to them, (N, 2).
    """
    ranks, found = np.zeros(len(queries), int), np.zeros(len(queries), int)
    for first in range(0, len(queries), _CHUNK):
        similarity = queries[first : first + _CHUNK] @ others.T
        own = np.full(len(similarity), -np.inf)
        here = pairs[(pairs[:, 0] >= first) & (pairs[:, 0] < first + _CHUNK)] - [first, 0]
        np.maximum.at(own, here[:, 0], similarity[here[:, 0], here[:, 1]])
        part = slice(first, first + _CHUNK)
        reach = similarity >= own[:, None]
        num_own = np.bincount(here[:, 0], reach[here[:, 0], here[:, 1]], len(own)).astype(int)
        ranks[part], found[part] = reach.sum(axis=1) - num_own, similarity.argmax(axis=1)
    return ranks, found


def _pictures(model, dataset, splits, indices, recipe):
    """{index of an example of the splits, one after the other: its pixels}"""
    found, offset, indices = {}, 0, np.unique(indices)
    decode, size = sample_decoder(model.image_encoder), recipe.fit.batch_size
    for split in [splits] if isinstance(splits, str) else splits:
        source = dataset.splits[split]
        here = indices[(indices >= offset) & (indices < offset + source.size)]
        if here.size:
            batches = read_once(select(source, here - offset), decode, lambda sample: 0, size)
            pixels = (image for images, _, is_real in batches for image in images[is_real])
            found |= dict(zip(here.tolist(), pixels, strict=True))
        offset += source.size
    return found
