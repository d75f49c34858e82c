"""The loss of models that predict masks of objects.

Shapes: B batch, H W pixels, h w of a map, n predictions, Q queries, C classes, M objects, P points.
"""

import keras
from keras import ops

from keras_vit.layers.ops.fixed_seed import FixedSeed
from training.errors import InputError
from training.tasks.matching import gather, match

_CLASS, _MASK = 2, 5  # Weights of the class, and of each of the two losses of a mask, in costs and losses.
_NO_OBJECT = 0.1  # Weight of a query without an object in the cross-entropy.
_OVERSAMPLED, _UNCERTAIN = 3, 0.75


class MaskObjective:
    """The loss of EoMT (arXiv 2503.19108), which is that of Mask2Former (arXiv 2112.01527, section 3.3).

    For each prediction, the objects of an image are assigned to queries (`training.tasks.matching.match`). With the
    probability p of the object's class, the cost of a query is::

        -2 p + 5 (binary cross-entropy) + 5 (1 - dice)

    dice is (2 sum(s t) + 1) / (sum(s) + sum(t) + 1) of the predicted mask s and the true mask t. It and the mean binary
    cross-entropy are computed at P random points of the image. The masks are interpolated there, linearly between the
    centres of pixels, with zeros around the map. The loss of a batch is the sum over all predictions of::

        2 (weighted mean of the cross-entropies of all queries' classes)
        + 5 (sum of the binary cross-entropies of all objects' masks) / (number of objects)
        + 5 (sum of 1 - dice of all objects' masks) / (number of objects)

    Queries without an object have weight 0.1 in the mean. Each object has its own P points: three quarters of them are
    those of 3 P random points where its predicted mask is the least certain, and the others are random.

    The loss of an image is its share of these sums, multiplied by the number B of images. If all images have the same
    weight, the mean loss of a batch is the published loss. Departures:

    * A part of a batch is treated as a batch of its own, if TensorFlow divides the batch among replicas, or
      `accumulation_steps` divides it into chunks. The loss is then the mean of the published losses of the parts.
      On JAX, all devices together have one batch. In the published code, each process takes the weighted mean of
      its own queries, but divides by the mean number of objects of all processes.
    * Images of weight 0, which fill the last batch of an epoch, count in the number of objects and in the mean.

    Args:
        num_queries: Number Q of queries.
        generator: `keras.random.SeedGenerator` of the points. It must be part of the learner, e.g. of one of its
            layers, because otherwise a checkpoint lacks its state, and on JAX all steps have the same points.
        num_points: Number P of points.
    """

    def __init__(self, num_queries, generator, num_points=12544):
        self.num_queries, self.generator, self.num_points = num_queries, generator, num_points

    def draw(self, shape):
        """Random numbers between 0 and 1, float32. Replicas of a model draw different numbers."""
        return keras.random.uniform(shape, dtype="float32", seed=FixedSeed(self.generator))

    def __call__(self, labels, outputs):
        """The losses, float32 (B,).

        Args:
            labels: Dictionary of `segments`, int32 (B, H, W), and `classes`, int32 (B, M). A segment is the number of
                an object, from 1 to M, or 0. An object without pixels, or with the class -1, counts as absent.
            outputs: Dictionary of logits `masks` (B, h, w, n Q) and `objects` (B, n Q, C + 1). The last class is "no
                object". In training, models return several predictions, one after the other on the axis of queries.

        Raises:
            InputError: If M > Q.
        """
        segments, classes = (ops.cast(labels[name], "int32") for name in ("segments", "classes"))
        masks, objects = (ops.cast(outputs[name], "float32") for name in ("masks", "objects"))
        batch_size, (num_objects, num_classes) = ops.shape(masks)[0], (classes.shape[1], objects.shape[2])
        if num_objects > self.num_queries:
            raise InputError(
                f"Each object of an image needs a query of its own. Received: images with up to {num_objects} objects, "
                f"a model with {self.num_queries} queries. Choose a model with at least {num_objects} queries."
            )
        objects = ops.reshape(objects, (batch_size, -1, self.num_queries, num_classes))  # (B, n, Q, C + 1)
        pixels = ops.vectorized_map(
            lambda numbers: ops.segment_sum(ops.ones_like(numbers), numbers, num_objects + 1),
            ops.reshape(segments, (batch_size, -1)),
        )
        is_object = (pixels[:, 1:] > 0) & (classes >= 0)
        chosen = _first(is_object)  # The others would take time, but have no loss.
        is_object, classes = (ops.take_along_axis(each, chosen, axis=1) for each in (is_object, classes))
        classes, numbers = ops.where(is_object, classes, 0), chosen + 1
        queries = self._match(segments, numbers, classes, is_object, *map(ops.stop_gradient, (masks, objects)))
        class_losses = self._class_losses(classes, is_object, queries, objects)
        mask_losses = self._mask_losses(segments, numbers, is_object, queries, masks)
        count, batch_size = ops.sum(ops.cast(is_object, "float32")), ops.cast(batch_size, "float32")
        weight = count + _NO_OBJECT * (batch_size * self.num_queries - count)
        return batch_size * (_CLASS * class_losses / weight + _MASK * mask_losses / ops.maximum(count, 1.0))

    def _match(self, segments, numbers, classes, is_object, masks, objects):
        """The query of each object in each prediction, int32 (B, n, M)."""
        batch_size, num_predictions = ops.shape(objects)[0], objects.shape[1]
        points = self.draw((batch_size, num_predictions, self.num_points, 2))
        truth = _true_masks(segments, numbers, points[:, :, None])  # (B, n, M, P)
        maps, offset = ops.reshape(masks, (batch_size, -1, self.num_queries)), ops.arange(num_predictions)[:, None]
        logits = sum(
            weight[..., None] * gather(maps, index * num_predictions + offset)
            for index, weight in _neighbors(points, masks.shape[1:3])
        )  # (B, n, P, Q)
        shares = ops.sigmoid(logits)
        cross_entropy = ops.sum(ops.softplus(logits), axis=2)[:, :, None] - ops.matmul(truth, logits)  # (B, n, M, Q)
        areas = ops.sum(truth, axis=3)[..., None] + ops.sum(shares, axis=2)[:, :, None]
        mask_costs = cross_entropy / self.num_points + _dice_loss(ops.matmul(truth, shares), areas)
        probabilities = ops.transpose(ops.softmax(objects), (0, 3, 1, 2))  # (B, C + 1, n, Q)
        class_costs = -ops.transpose(gather(probabilities, classes), (0, 2, 1, 3))
        costs = ops.reshape(_CLASS * class_costs + _MASK * mask_costs, (-1, *ops.shape(mask_costs)[2:]))
        queries = match(costs, ops.repeat(is_object, num_predictions, axis=0))
        return ops.reshape(queries, (batch_size, num_predictions, ops.shape(numbers)[1]))

    def _class_losses(self, classes, is_object, queries, objects):
        """The weighted cross-entropies, summed over the queries of all predictions, (B,)."""
        no_object = objects.shape[3] - 1
        is_assigned = is_object[:, None, :, None] & ops.one_hot(queries, self.num_queries, dtype="bool")
        changes = ops.where(is_assigned, classes[:, None, :, None] - no_object, 0)  # (B, n, M, Q)
        targets = no_object + ops.sum(changes, axis=2)
        losses = ops.sparse_categorical_crossentropy(targets, objects, from_logits=True)
        return ops.sum(ops.where(targets == no_object, _NO_OBJECT, 1.0) * losses, axis=(1, 2))

    def _mask_losses(self, segments, numbers, is_object, queries, masks):
        """The losses of the masks of objects, summed over the objects of all predictions, (B,)."""
        num_predictions, num_objects = ops.shape(queries)[1:]
        channels = (queries + self.num_queries * ops.arange(num_predictions, dtype="int32")[:, None])[..., None]
        size, num_channels = masks.shape[1:3], masks.shape[3]
        maps = ops.reshape(masks, (ops.shape(masks)[0], -1))

        def logits_at(points):
            neighbors = _neighbors(points, size)
            return sum(weight * gather(maps, index * num_channels + channels) for index, weight in neighbors)

        shape = (ops.shape(masks)[0], num_predictions, num_objects)
        num_uncertain = int(_UNCERTAIN * self.num_points)
        points = self.draw((*shape, _OVERSAMPLED * self.num_points, 2))
        _, chosen = ops.top_k(-ops.abs(ops.stop_gradient(logits_at(points))), num_uncertain)
        random = self.draw((*shape, self.num_points - num_uncertain, 2))
        points = ops.concatenate([ops.take_along_axis(points, chosen[..., None], axis=3), random], axis=3)
        truth, logits = _true_masks(segments, numbers, points), logits_at(points)  # (B, n, M, P)
        shares = ops.sigmoid(logits)
        areas = ops.sum(truth, axis=3) + ops.sum(shares, axis=3)
        losses = ops.mean(ops.softplus(logits) - truth * logits, axis=3)
        losses = losses + _dice_loss(ops.sum(truth * shares, axis=3), areas)
        return ops.sum(ops.where(is_object[:, None], losses, 0.0), axis=(1, 2))


def _dice_loss(intersection, areas):
    return 1 - (2 * intersection + 1) / (areas + 1)


def _first(is_object):
    """Indices of the objects of each image, before those of padding, int32 (B, m).

    On TensorFlow, m is the largest number of objects of an image. Shapes of JAX cannot depend on values, so m = M.
    """
    num_objects = is_object.shape[1]
    order = ops.argsort(ops.where(is_object, 0, num_objects) + ops.arange(num_objects, dtype="int32"), axis=1)
    if keras.backend.backend() == "jax":
        return order
    return order[:, : ops.maximum(ops.max(ops.sum(ops.cast(is_object, "int32"), axis=1)), 1)]


def _true_masks(segments, numbers, points):
    """The masks of objects at points (B, n, M or 1, P, 2), interpolated: (B, n, M, P)."""
    size, numbers = segments.shape[1:], numbers[:, None, :, None]
    segments = ops.reshape(segments, (ops.shape(segments)[0], -1))
    neighbors = _neighbors(points, size)
    return sum(weight * ops.cast(gather(segments, index) == numbers, "float32") for index, weight in neighbors)


def _neighbors(points, size):
    """For each of four pixels around points (..., 2), their indices in a map of this size, and weights.

    Points are (x, y) between 0 and 1. Pixels outside the map have weight 0. The same as `grid_sample` of PyTorch with
    `align_corners=False` and padding with zeros.
    """
    height, width = size
    x, y = points[..., 0] * width - 0.5, points[..., 1] * height - 0.5
    left, top = ops.floor(x), ops.floor(y)
    for row in (top, top + 1):
        for column in (left, left + 1):
            is_inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            weight = ops.where(is_inside, (1 - ops.abs(x - column)) * (1 - ops.abs(y - row)), 0.0)
            index = ops.cast(row, "int32") * width + ops.cast(column, "int32")
            yield ops.where(is_inside, index, 0), weight
