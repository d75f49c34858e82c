"""Semantic segmentation: each pixel has a class. Shapes: B batch, H W C image."""

import keras

from keras_vit.heads import segments
from keras_vit.layers import ResizeLike
from training.evaluation.segmentation import evaluate
from training.reports.segmentation import write_segmentation_report
from training.reports.text import segmentation_text
from training.tasks import masks as query_tasks
from training.tasks import task
from training.tasks.pixel_losses import MeanIoU, PixelCrossEntropy


class Task(task.DenseTask):
    """The task of classifying pixels. The labels of a batch are masks, uint8 (B, H, W), at the model's input size.

    With an EoMT head, the task is a `TaskWithQueries`.
    """

    metric = task.Metric("mean_iou", "mean IoU")
    annotation = "mask"
    factory, output = "Segmenter", "class_map"
    commands = ("records", "evaluate", "predict", "export")
    published_results = ("mean_iou", "pixel_accuracy")

    def __new__(cls, recipe):
        return super().__new__(TaskWithQueries if recipe.model.head == "eomt" else cls)

    def read_label(self, sample, num_classes):
        """uint8 (H, W)"""
        return sample["mask"][..., 0]

    def head_arguments(self, num_classes, with_logits):
        return {"classes": num_classes, "classifier_activation": None if with_logits else "softmax"}

    def build_objective(self, learner, dataset):
        return PixelCrossEntropy()

    def build_metric(self, learner, dataset):
        return MeanIoU(len(dataset.class_names), name=self.metric.name)

    def evaluate(self, model, dataset, splits):
        return evaluate(model, dataset, splits, self.recipe)

    def evaluation_text(self, evaluation):
        return segmentation_text(evaluation)

    def results(self, evaluation):
        return {
            "test_mean_iou": evaluation.mean_iou,
            "test_pixel_accuracy": evaluation.pixel_accuracy,
            "test_images": evaluation.num_images,
        }

    def report(self, run, dataset, state, evaluation, model):
        write_segmentation_report(run, self.recipe, state, evaluation, model)
        return self.results(evaluation)


class TaskWithQueries(Task):
    """The task of classifying pixels with an EoMT head: each class is a segment (`training.tasks.masks`)."""

    prepare = query_tasks.Panoptic.prepare
    build_objective = query_tasks.Panoptic.build_objective
    build_metric = query_tasks.Panoptic.build_metric
    has_background, output = False, "masks"

    def read_label(self, sample, num_classes):
        return query_tasks.segments_of_classes(sample["mask"][..., 0], num_classes)

    def evaluate(self, model, dataset, splits):
        masks = ResizeLike()(model.output["masks"], model.input)
        classifier = keras.Model(model.input, segments.semantic_scores(masks, model.output["objects"]))
        return evaluate(classifier, dataset, splits, self.recipe)
