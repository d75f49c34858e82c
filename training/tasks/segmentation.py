"""Semantic segmentation: each pixel has a class. Shapes: B batch, H W C image."""

from training.evaluation.segmentation import evaluate
from training.reports.segmentation import write_segmentation_report
from training.reports.text import segmentation_text
from training.tasks import task
from training.tasks.pixel_losses import MeanIoU, PixelCrossEntropy


class Task(task.Task):
    """The task of classifying pixels. The labels of a batch are masks, uint8 (B, H, W), at the model's input size."""

    metric = task.Metric("mean_iou", "mean IoU")
    annotation = "mask"
    factory = "Segmenter"
    commands = ("records", "evaluate", "predict", "export")
    published_results = ("mean_iou", "pixel_accuracy")

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

    def predict_options(self, run):
        return ("--to", str(run.figures / "samples"))

    def next_commands(self, folder, samples):
        return [f"predict {folder} {samples}/* --to predictions"]
