"""Segmentation with queries. Shapes: B batch, H W image, h w masks, n predictions, Q queries, C classes, M objects.

A model with an EoMT head predicts a mask and a class for each query. It learns objects, segments of things and stuff,
or the regions of classes, which are segments with one class each.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

import keras_vit
from keras_vit.heads import segments
from training.data.masks import VOID
from training.evaluation.masks import evaluate_instances, evaluate_panoptic
from training.reports.masks import write_masks_report
from training.reports.text import masks_text
from training.tasks import task
from training.tasks.mask_losses import MaskObjective
from training.tasks.pixel_losses import MeanIoU

_POINTS = 0.49  # Points in the loss per pixel of a mask: 12544 for 160 x 160 pixels (EoMT at 640 pixels).


class Instances(task.DenseTask):
    """The task of finding objects and their pixels.

    The labels of a batch are a dictionary: `segments`, int32 (B, H, W), and `classes`, int32 (B, M), as in
    `training.tasks.mask_losses.MaskObjective`.
    """

    metric = task.Metric("mean_iou", "mean IoU of the classes of pixels", tested_as="mask_ap")
    annotation = "segments"
    commands = ("evaluate", "predict", "export")
    published_results: tuple[str, ...] = ("mask_ap", "mask_ap50")
    factory, output = "Segmenter", "masks"
    has_background = True

    def read_label(self, sample, num_classes):
        segments, classes = sample["segments"][..., 0], sample["segment_classes"]
        return {"segments": tf.cast(segments, tf.int32), "classes": tf.cast(classes, tf.int32)}

    def head_arguments(self, num_classes, with_logits):
        return {"classes": num_classes}

    def prepare(self, model, total_steps):
        """The attention of the queries is masked at first, and unmasked in the course of the steps."""
        model.get_layer("head").annealing_steps = total_steps * self.recipe.fit.accumulation_steps

    def build_objective(self, learner, dataset):
        head, (height, width) = learner.get_layer("head"), learner.output["masks"].shape[1:3]
        return MaskObjective(head.num_queries, head.seed_generator, round(_POINTS * height * width))

    def build_metric(self, learner, dataset):
        num_queries = learner.get_layer("head").num_queries
        return SegmentsMeanIoU(len(dataset.class_names), num_queries, self.has_background, name=self.metric.name)

    def evaluate(self, model, dataset, splits):
        size, label = tuple(model.input_shape[1:3]), self._evaluation_label(dataset)

        def instances(masks, objects):
            full = segments.resized(masks[None], size)
            inside, classes, scores = (np.asarray(x)[0] for x in segments.instances(full, objects[None]))
            return inside.transpose(2, 0, 1), classes, scores

        return evaluate_instances(model, dataset, splits, self.recipe, label, instances)

    def _evaluation_label(self, dataset):
        return lambda sample: self.read_label(sample, len(dataset.class_names))

    def evaluation_text(self, evaluation):
        return masks_text(evaluation)

    def results(self, evaluation):
        scores = {f"test_mask_{name.lower()}": value for name, value in evaluation.totals.items()}
        return scores | {"test_images": evaluation.num_images}

    def report(self, run, dataset, state, evaluation, model):
        quality = self.metric.name, f"{self.metric.title} (%)", 100
        write_masks_report(run, self.recipe, state, evaluation, model, quality)
        return self.results(evaluation)


class Panoptic(Instances):
    """The task of dividing an image into segments of things and stuff."""

    metric = task.Metric("mean_iou", "mean IoU of the classes of pixels", tested_as="panoptic_quality")
    published_results = ("panoptic_quality",)
    has_background = False

    def finish(self, model, dataset):
        super().finish(model, dataset)
        keras_vit.set_output(model, "objects", output="predictions", is_thing=dataset.is_thing)

    def evaluate(self, model, dataset, splits):
        size, label = tuple(model.input_shape[1:3]), self._evaluation_label(dataset)
        is_thing = dataset.is_thing or [True] * len(dataset.class_names)

        def panoptic(masks, objects):
            full = segments.resized(masks[None], size)
            regions, classes, scores = (np.asarray(x)[0] for x in segments.panoptic(full, objects[None], is_thing))
            return regions, [(query, classes[query]) for query in np.flatnonzero(scores).tolist()]

        return evaluate_panoptic(model, dataset, splits, self.recipe, label, panoptic, is_thing)

    def results(self, evaluation):
        names = dict(zip(("panoptic", "segmentation", "recognition"), evaluation.totals.values(), strict=True))
        scores = {f"test_{name}_quality": value for name, value in names.items()}
        return scores | {"test_mean_iou": evaluation.mean_iou, "test_images": evaluation.num_images}


def segments_of_classes(mask, num_classes):
    """The label of a batch for a map of classes, uint8 (H, W): each class is an object. Void pixels have none."""
    numbers = tf.cast(mask, tf.int32) + 1
    return {"segments": tf.where(mask == VOID, 0, numbers), "classes": tf.range(num_classes)}


@keras.saving.register_keras_serializable(package="training")
class SegmentsMeanIoU(MeanIoU):
    """Mean IoU of the classes of pixels, for labels and outputs with segments.

    The predicted class of a pixel is that with the highest of `keras_vit.heads.segments.semantic_scores`. Segments of
    the class -1 are not counted.

    Args:
        num_classes: Number C of classes.
        num_queries: Number Q of queries. Of several predictions, the last is used.
        has_background: Whether pixels without an object are a further class. It is predicted where all scores are below
            0.5. If not, these pixels are void.
    """

    void = -1  # There can be more than 255 classes.

    def __init__(self, num_classes, num_queries, has_background=False, name="mean_iou", dtype=None):
        super().__init__(num_classes + has_background, name=name, dtype=dtype)
        self.num_queries, self.has_background = num_queries, has_background

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds a batch of labels and outputs, as in `training.tasks.mask_losses.MaskObjective`."""
        labels, classes = (ops.cast(y_true[name], "int32") for name in ("segments", "classes"))
        rest = self.num_classes - 1 if self.has_background else self.void
        table = ops.pad(classes, ((0, 0), (1, 0)), constant_values=rest)
        flat = ops.reshape(labels, (ops.shape(labels)[0], -1))
        true = ops.reshape(ops.take_along_axis(table, flat, axis=1), ops.shape(labels))
        masks, objects = y_pred["masks"][..., -self.num_queries :], y_pred["objects"][:, -self.num_queries :]
        masks, objects = (ops.cast(each, "float32") for each in (masks, objects))
        scores = segments.resized(segments.semantic_scores(masks, objects), labels.shape[1:3])
        if self.has_background:
            scores = ops.pad(scores, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=0.5)
        super().update_state(true, scores, sample_weight)

    def get_config(self):
        config = {**super().get_config(), "num_queries": self.num_queries, "has_background": self.has_background}
        return {**config, "num_classes": self.num_classes - self.has_background}
