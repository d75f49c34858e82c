"""What exports return for each kind of output, and how it is compared with the model.

Shapes: B batch, N images, H W image, h w masks, Q queries, C classes, k top classes.
"""

import keras
import numpy as np
from keras import ops

from keras_vit.graph import to_array
from keras_vit.heads import segments
from keras_vit.outputs import ACTIVATIONS, output_of

_NEARLY = 0.05
"""Values of an export of lower precision agree with the model's if they differ by at most this share of their range."""
SIMILAR = 0.99
"""Vectors of an export of lower precision agree with the model's if the cosine of their angle is at least this."""


class Answer:
    """What exports return for a kind of output. This class returns the numbers of the model's output.

    Attributes:
        names: Names of the main outputs, which `compute` returns, in alphabetical order.
        rank: Rank of the model's output.
        num_channels: Size of the last axis of the model's output, or `None` for any size.
        labels: Names of the numbers on this axis, if they are the same for all models.
        has_probabilities: Whether the main output consists of probabilities, whose differences are not scaled.
        has_names: Whether a SavedModel returns the names of what it predicts.
        returns_mask: Whether a SavedModel returns `mask` and `score` in place of the main output.
        in_original: Names of the signatures that return pixels of the original images. Other kinds have none.
        batch_sizes: Batch sizes with which a server is warmed up by default.
    """

    names: tuple[str, ...] = ("values",)
    rank = 2
    num_channels: int | None = None
    labels: tuple[str, ...] | None = None
    has_probabilities = has_names = returns_mask = False
    in_original: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = (1, 8, 32)

    @staticmethod
    def compute(model, images):
        """Returns the main output for prepared images, float32 (B, ...), or a dictionary of several."""
        return ops.cast(model(images, training=False), "float32")

    def accepts(self, output, shape):
        """Whether a model with this `Output` and outputs of this shape can be exported."""
        return isinstance(shape, tuple) and len(shape) == self.rank and self.num_channels in (None, shape[-1])

    def num_names(self, model):
        """Number of the names of the model's classes, labels or values."""
        return model.output_shape[-1]

    def reduced(self, outputs):
        """Changes the outputs of a chunk of images, {name: tensor}, in a graph of TensorFlow. Saves memory."""
        return outputs

    def named(self, outputs, names, top_k):
        """Adds outputs for clients to those of all images, {name: tensor}, in a graph of TensorFlow.

        Only SavedModels have them. Files for other runtimes return the main outputs.
        """
        return outputs

    def scale(self, expected):
        """The number by which differences of a main output (N, ...) are divided."""
        return 1.0 if self.has_probabilities else float(np.abs(expected).max()) or 1.0

    def predicted_classes(self, outputs):
        """The sorted indices of the classes that the main outputs predict. Empty if they predict no classes."""
        return []

    def agreement(self, found, expected, negatives):
        """The share of the images or pixels for which an export of lower precision gives the same answer as the model.

        Args:
            found: Main outputs of the export, a list of arrays (N, ...).
            expected: Main outputs of the model, a list of arrays (N, ...).
            negatives: Main outputs of the model for another image, a list of arrays (...).
        """
        [found], [expected], [negative] = found, expected, negatives
        allowed = _NEARLY * np.ptp(np.concatenate([expected, negative[None]]), axis=0)
        return (np.abs(found - expected) <= allowed).all(axis=-1).mean()


class Embedding(Answer):
    """The vector of an image, (B, D), as the model returns it."""

    names: tuple[str, ...] = ("embedding",)

    def accepts(self, output, shape):
        # Other activations, such as relu, are those of classifiers whose meaning is unknown.
        return super().accepts(output, shape) and output.activation in (None, "tanh")

    def num_names(self, model):
        return 0

    def agreement(self, found, expected, negatives):
        [found], [expected] = found, expected
        lengths = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
        return ((found * expected).sum(axis=-1) >= SIMILAR * lengths).mean()


class Scores(Answer):
    """The probabilities of classes or labels, and the most probable of them."""

    names: tuple[str, ...] = ("probabilities",)
    has_probabilities = has_names = True

    @staticmethod
    def compute(model, images):
        """Returns the probabilities for prepared images, float32 (B, ...), also of logits."""
        outputs, output = ops.cast(model(images, training=False), "float32"), output_of(model)
        return keras.activations.get(ACTIVATIONS[output.kind])(outputs) if output.has_logits else outputs

    def accepts(self, output, shape):
        return super().accepts(output, shape) and output.activation in ("softmax", "sigmoid", None)

    def named(self, outputs, names, top_k):
        import tensorflow as tf

        if "probabilities" not in outputs:
            return outputs
        scores, classes = tf.math.top_k(outputs["probabilities"], min(top_k, len(names)))
        labels = tf.gather(tf.constant(names), classes)
        if "valid" in outputs:
            valid = outputs["valid"][:, None]
            classes, labels = tf.where(valid, classes, -1), tf.where(valid, labels, "")
        return outputs | {"classes": classes, "labels": labels, "scores": scores}

    def predicted(self, outputs):
        """The predicted class of each image or pixel, (N, ...)."""
        [probabilities] = outputs
        return probabilities.argmax(axis=-1)

    def predicted_classes(self, outputs):
        return np.unique(self.predicted(outputs)).tolist()

    def agreement(self, found, expected, negatives):
        return (self.predicted(found) == self.predicted(expected)).mean()


class Classes(Scores):
    """Same as `Scores`, for classes that exclude each other: the softmax of a single logit would always be 1."""

    def accepts(self, output, shape):
        return super().accepts(output, shape) and (shape[-1] > 1 or not output.has_logits)


class ClassMap(Scores):
    """The most probable class of each pixel and its score, (B, H, W). They take less memory than probabilities."""

    rank = 4
    has_names = False
    returns_mask = True
    in_original: tuple[str, ...] = ("predict_original",)
    batch_sizes = (1, 4)

    def accepts(self, output, shape):
        return super().accepts(output, shape) and shape[-1] > 1

    def reduced(self, outputs):
        import tensorflow as tf

        remaining = {name: output for name, output in outputs.items() if name != "probabilities"}
        best = self.of_strip(outputs["probabilities"])
        if "valid" in outputs:
            nothing = tf.cast(void(best["mask"].dtype), best["mask"].dtype)
            best["mask"] = tf.where(outputs["valid"][:, None, None], best["mask"], nothing)
        return remaining | best

    def named(self, outputs, names, top_k):
        return outputs

    def maps(self, outputs, input_size):
        """The maps (B, h, w, C) that the signature `predict_original` resizes, from main outputs, {name: tensor}."""
        return outputs["probabilities"]

    def of_strip(self, strip):
        """The outputs of `predict_original`, {name: tensor (B, H, W, ...)}, for resized maps (B, H, W, C)."""
        import tensorflow as tf

        dtype = tf.uint8 if strip.shape[-1] < 2**8 else tf.int32
        mask = tf.cast(tf.argmax(strip, axis=-1, output_type=tf.int32), dtype)
        return {"mask": mask, "score": tf.reduce_max(strip, axis=-1)}


class Depth(Answer):
    """The depth of each pixel, (B, H, W)."""

    names: tuple[str, ...] = ("depth",)
    labels: tuple[str, ...] = ("depth",)
    rank, num_channels = 4, 1
    in_original = ("predict_original",)
    batch_sizes = (1, 4)

    @staticmethod
    def compute(model, images):
        """Returns the depth for prepared images, float32 (B, H, W)."""
        return ops.squeeze(Answer.compute(model, images), axis=-1)

    def maps(self, outputs, input_size):
        return outputs["depth"][..., None]

    def of_strip(self, strip):
        return {"depth": strip[..., 0]}

    def agreement(self, found, expected, negatives):
        [found], [expected] = found, expected
        allowed = _NEARLY * np.ptp(expected, axis=(1, 2), keepdims=True)
        return (np.abs(found - expected) <= allowed).mean()


class Normals(Depth):
    """The surface normal of each pixel, (B, H, W, 3)."""

    names = ("normals",)
    num_channels, labels = 3, ("x", "y", "z")
    compute = staticmethod(Answer.compute)

    def maps(self, outputs, input_size):
        return outputs["normals"]

    def of_strip(self, strip):
        return {"normals": strip}


class Masks(ClassMap):
    """Logits of the masks of queries, (B, h, w, Q), and of their classes, (B, Q, C + 1).

    A SavedModel also returns the class of each query and its score, as `segments.instances` computes them.
    """

    names = ("masks", "objects")
    has_probabilities = returns_mask = False
    in_original = ("predict_original", "instances", "panoptic")

    @staticmethod
    def compute(model, images):
        """Returns the logits for prepared images, {"masks": float32 (B, h, w, Q), "objects": (B, Q, C + 1)}."""
        return {name: ops.cast(output, "float32") for name, output in model(images, training=False).items()}

    def accepts(self, output, shape):
        return isinstance(shape, dict) and tuple(sorted(shape)) == self.names

    def num_names(self, model):
        return model.output["objects"].shape[-1] - 1

    def reduced(self, outputs):
        _, classes, scores = segments.instances(outputs["masks"], outputs["objects"])
        return outputs | {"classes": classes, "scores": scores}

    def named(self, outputs, names, top_k):
        import tensorflow as tf

        if "classes" not in outputs:
            return outputs
        classes = outputs["classes"]
        if "valid" in outputs:
            classes = tf.where(outputs["valid"][:, None], classes, -1)
        labels = tf.gather([*names, ""], classes % (len(names) + 1))  # The last one is that of class -1.
        return outputs | {"classes": classes, "labels": labels}

    def maps(self, outputs, input_size):
        return segments.semantic_scores(segments.resized(outputs["masks"], input_size), outputs["objects"])

    def predicted(self, outputs):
        """The class of each pixel of the masks, (N, h, w), in semantic segmentation."""
        rows = [segments.semantic_scores(*pair) for pair in zip(*(array[:, None] for array in outputs), strict=True)]
        return np.stack([to_array(row)[0].argmax(axis=-1) for row in rows])


def void(dtype):
    """The class of pixels without a class, in a mask of an integer type of TensorFlow."""
    return 255 if dtype.name == "uint8" else -1


def by_name(names, outputs):
    """{name: output} for an output, or a dictionary of outputs whose names are `names`."""
    return dict(zip(names, keras.tree.flatten(outputs), strict=True))


ANSWERS = {
    "classes": Classes(),
    "labels": Scores(),
    "values": Answer(),
    "embedding": Embedding(),
    "class_map": ClassMap(),
    "depth": Depth(),
    "normals": Normals(),
    "masks": Masks(),
}
"""{kind of an output: `Answer`}. Models with other outputs cannot be exported."""


def answer_of(model):
    """The `Answer` of the exports of a model."""
    return ANSWERS[output_of(model).kind]
