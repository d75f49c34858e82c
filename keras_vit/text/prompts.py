"""Prompts: sentences about classes, from which classifiers are made. Shapes: C classes, E embedding."""

import collections
import collections.abc
import hashlib
import itertools
import time

import numpy as np

from keras_vit.atomic_files import replace_file_atomically
from keras_vit.checks import did_you_mean, shown
from keras_vit.weights.assign import checksum
from keras_vit.weights.sources.download import writing
from keras_vit.weights.sources.fetch import cache_folder

_PICTURES = (
    *("a bad photo of {a} {c}", "a photo of {a} hard to see {c}", "a low resolution photo of {a} {c}"),
    *("a rendering of {a} {c}", "graffiti of {a} {c}", "a cropped photo of {a} {c}", "a tattoo of {a} {c}"),
    *("a bright photo of {a} {c}", "a photo of {a} clean {c}", "a photo of {a} dirty {c}", "a dark photo of {a} {c}"),
    *("a drawing of {a} {c}", "a photo of {a} cool {c}", "a close-up photo of {a} {c}", "a painting of {a} {c}"),
    *("a black and white photo of {a} {c}", "a pixelated photo of {a} {c}", "a sculpture of {a} {c}"),
    *("a jpeg corrupted photo of {a} {c}", "a blurry photo of {a} {c}", "a photo of {a} {c}", "itap of {a} {c}"),
    *("a good photo of {a} {c}", "a doodle of {a} {c}", "a sketch of {a} {c}", "a rendition of {a} {c}"),
    *("a photo of {a} large {c}", "a photo of {a} nice {c}", "a photo of {a} weird {c}", "a photo of {a} small {c}"),
    *("art of {a} {c}", "{a} embroidered {c}", "{a} plastic {c}", "{a} {c} in a video game", "{a} origami {c}"),
    *("{a} toy {c}", "{a} cartoon {c}", "{a} plushie {c}"),
)
_SINGLE = ("a photo of many {c}", "a photo of my {c}", "a photo of one {c}", "itap of my {c}")
_BEST = ("itap of a", "a bad photo of the", "a origami", "a photo of the large", "art of the", "a photo of the small")
TEMPLATES = {
    "name": ("{}",),
    "photo": ("a photo of a {}.",),
    "clip_best": (*(f"{words} {{}}." for words in _BEST), "a {} in a video game."),
    "clip": tuple(
        f"{picture.format(a=article, c='{}')}."
        for picture, article in (*itertools.product(_PICTURES, ("a", "the")), *((text, "") for text in _SINGLE))
    ),
}
"""{name: templates, in which `{}` stands for the name of a class}. `"clip"` are the 80 that CLIP (arXiv 2103.00020) and
SigLIP (arXiv 2303.15343) were evaluated with on ImageNet, and `"clip_best"` the seven best of them, which were chosen
in CLIP's notebook on prompts."""
_SECONDS_BETWEEN_LINES = 10
_TEXTS_AT_ONCE = 1024


def check_templates(templates):
    """Returns a tuple of templates, for a key of `TEMPLATES`, a template or a list of templates.

    Raises:
        ValueError: If a template has no `{}`, or the key is unknown.
    """
    if isinstance(templates, str) and "{}" not in templates:
        if templates not in TEMPLATES:
            raise ValueError(
                f"templates must be one of {', '.join(map(repr, TEMPLATES))}, or texts that contain {{}} for the name "
                f"of the class. Received: {templates!r}.{did_you_mean(templates, TEMPLATES)}"
            )
        return TEMPLATES[templates]
    given = (templates,) if isinstance(templates, str) else tuple(templates)
    for text in given:
        if not isinstance(text, str) or "{}" not in text:
            raise ValueError(f"A template must contain {{}} for the name of the class. Received: {shown(text)}")
    if not given:
        raise ValueError("At least one template is needed. Received: none")
    return given


def check_names(names):
    """{label of a class: its names}, for a list of names or such a dictionary.

    Raises:
        ValueError: If there is no class, a label occurs twice, or a name is not a text or is empty.
    """
    if isinstance(names, str) or not isinstance(names, collections.abc.Iterable):
        raise ValueError(f"names must be a list of names, or {{label: list of names}}. Received: {shown(names)}")
    pairs = names.items() if isinstance(names, collections.abc.Mapping) else [(name, [name]) for name in names]
    pairs = [(label, [each] if isinstance(each, str) else list(each)) for label, each in pairs]
    classes = dict(pairs)
    if not classes:
        raise ValueError("At least one name is needed. Received: none")
    if twice := [label for label, number in collections.Counter(label for label, _ in pairs).items() if number > 1]:
        raise ValueError(f"Each class needs a label of its own. Received several times: {', '.join(map(repr, twice))}")
    for label, each in pairs:
        if not each or not all(isinstance(name, str) and name.strip() for name in (label, *each)):
            raise ValueError(f"A class needs a label and names that are texts. Received: {label!r} with {each!r}")
    return classes


def class_embeddings(model, classes, templates):
    """The embeddings of classes, unit vectors, float32 (C, E).

    The embedding of a class is the mean of the embeddings of all its texts, the names in all templates, divided by its
    length (CLIP, section 3.1.4). Embeddings are kept in the folder of downloaded weights, under a name that depends on
    the texts, the tokenizer, the weights and the precision.

    Args:
        model: `keras_vit.ImageTextModel`
        classes: Result of `check_names`.
        templates: Result of `check_templates`.
    """
    texts = [[template.replace("{}", name) for name in names for template in templates] for names in classes.values()]
    path = cache_folder() / "text_embeddings" / f"{_fingerprint(model, texts)}.npy"
    if path.is_file():
        return np.load(path)
    with writing(path):  # A folder that cannot be made is reported before the texts are computed.
        path.parent.mkdir(parents=True, exist_ok=True)
    flat, began = [text for each in texts for text in each], time.monotonic()
    found: list[np.ndarray] = []
    printed = began
    for first in range(0, len(flat), _TEXTS_AT_ONCE):
        found.append(model.text_embeddings(flat[first : first + _TEXTS_AT_ONCE]))
        now, done = time.monotonic(), min(first + _TEXTS_AT_ONCE, len(flat))
        if now - printed > _SECONDS_BETWEEN_LINES:
            left = (now - began) / done * (len(flat) - done) / 60
            print(f"Embedded {done:,} of {len(flat):,} texts, {left:.1f} minutes left", flush=True)
            printed = now
    parts = np.split(np.concatenate(found), np.cumsum([len(each) for each in texts])[:-1])
    means = np.stack([part.mean(axis=0) for part in parts])
    embeddings = (means / np.linalg.norm(means, axis=-1, keepdims=True)).astype("float32")
    with writing(path), replace_file_atomically(path) as unfinished, open(unfinished, "wb") as file:
        np.save(file, embeddings)
    return embeddings


def _fingerprint(model, texts):
    weights = {str(index): weight for index, weight in enumerate(model.text_encoder.get_weights())}
    dtypes = [layer.compute_dtype for layer in model.text_encoder.layers]
    settings = model.text_config, dtypes, model.tokenizer.kind, model.tokenizer.context_length, texts
    digest = hashlib.sha256(repr(settings).encode("utf-8", "replace"))
    digest.update(model.tokenizer.vocabulary)
    digest.update(str(checksum(weights)).encode())
    return digest.hexdigest()[:32]
