"""The loss and the metric of semantic segmentation. Shapes: B batch, H W pixels, C classes."""

import keras
from keras import ops

from training.data.masks import VOID


class PixelCrossEntropy:
    """Softmax cross-entropy, averaged over the pixels of an image that are not void.

    Every image has the same weight, even if some of its pixels are void. If all are void, the loss of the image is 0.
    """

    def __call__(self, labels, logits):
        """The losses in nats, float32 (B,), of integer labels (B, H, W) and logits (B, H, W, C)."""
        is_known = labels != VOID
        known = ops.cast(is_known, "float32")
        classes = ops.where(is_known, labels, ops.zeros_like(labels))
        losses = ops.sparse_categorical_crossentropy(
            ops.cast(classes, "int32"), ops.cast(logits, "float32"), from_logits=True
        )
        return ops.sum(known * losses, axis=(1, 2)) / ops.maximum(ops.sum(known, axis=(1, 2)), 1)


@keras.saving.register_keras_serializable(package="training")
class MeanIoU(keras.metrics.Metric):
    """Mean intersection over union of the predicted and true pixels of each class.

    Void pixels are not counted. Classes that have neither predicted nor true pixels are left out of the mean. Pixels
    are counted over all images, in float32. Counts above 16.8 million pixels of a class are therefore rounded.

    Args:
        num_classes: Number C of classes.
    """

    void = VOID
    """The label of void pixels"""

    def __init__(self, num_classes, name="mean_iou", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.num_classes = num_classes
        # Numbers of right, true and predicted pixels of each class. The numbers of several replicas can be summed.
        self.counts = self.add_variable((3, num_classes), "zeros", dtype=self.dtype, name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds a batch of labels (B, H, W) and logits (B, H, W, C). Images of weight 0 are not counted."""
        is_known = y_true != self.void
        if sample_weight is not None:
            is_known = ops.logical_and(is_known, ops.reshape(sample_weight, (-1, 1, 1)) > 0)
        true = ops.where(is_known, ops.cast(y_true, "int32"), 0)
        known, true, predicted = (ops.reshape(x, (-1,)) for x in (is_known, true, ops.argmax(y_pred, axis=-1)))
        pairs = (known & (true == predicted), true), (known, true), (known, predicted)
        counted = [ops.segment_sum(ops.cast(each, self.dtype), classes, self.num_classes) for each, classes in pairs]
        self.counts.assign(self.counts + ops.stack(counted))

    def result(self):
        right, true, predicted = (self.counts[row] for row in range(3))
        union = true + predicted - right
        occurs = ops.cast(union > 0, self.dtype)
        return ops.sum(right / ops.maximum(union, 1)) / ops.maximum(ops.sum(occurs), 1)

    def get_config(self):
        return {**super().get_config(), "num_classes": self.num_classes}
