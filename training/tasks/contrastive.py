"""Images and their texts: both are found by the other. Shapes: B pairs, T tokens, E embedding."""

import functools

import keras
import tensorflow as tf
from keras import ops

import keras_vit
from keras_vit.text.contrastive import loss_over_replicas
from keras_vit.text.tokenizers import Tokenizer
from keras_vit.weights.opening import open_checkpoint, open_text
from training.errors import InputError, without_call
from training.evaluation.retrieval import evaluate
from training.reports.retrieval import write_retrieval_report
from training.reports.text import retrieval_text
from training.tasks import task

_END_ID = 1  # Of the end token in a vocabulary of words.


class Task(task.Task):
    """The task of finding the text of an image, and the image of a text.

    The model is an image encoder. The learner is a `keras_vit.ImageTextModel`, which contains it. The labels of a batch
    are token ids, int32 (B, T), which the learner reads, too. Each text of an image is an example.
    """

    metric = task.Metric("recall_at_1", "recall at 1")
    annotation = "text"
    predicted = "texts"
    commands = ("evaluate", "explain")
    published_results = ("recall_at_1", "image_recall_at_1")
    has_predictions = False
    reads_labels = True
    head_of_weights = None

    def load(self, disjoint=True, record=None):
        self._dataset = super().load(disjoint, record)
        return self._dataset

    @functools.cached_property
    def _published(self):
        """`keras_vit.weights.checkpoint.TextCheckpoint` of a published text encoder, or `None`."""
        options = self.recipe.text
        if options.config:
            return None
        try:
            return open_text(options.weights or self.recipe.model.weights)
        except (ValueError, OSError) as error:
            raise InputError(str(error)) from error

    @functools.cached_property
    def _tokenizer(self):
        options = self.recipe.text
        if self._published is None:
            return Tokenizer.from_texts(self._dataset.list_texts(), options.config["context_length"])
        folder = options.tokenizer or self._published.folder
        if folder is None:
            raise InputError("The weights of the text encoder have no tokenizer beside them. Set text.tokenizer=PATH.")
        try:
            return Tokenizer.from_file(self._published.tokenizer, folder, self._published.config.context_length)
        except (ValueError, OSError, ImportError) as error:
            raise InputError(str(error)) from error

    def read_label(self, sample, num_classes):
        """Token ids, int32 (T,)."""
        ids = tf.numpy_function(lambda text: self._tokenizer(text.decode())[0], [sample["text"]], tf.int32, False)
        return tf.ensure_shape(ids, [self._tokenizer.context_length])

    def label_text(self, annotation, class_names):
        return annotation.decode()

    def head_arguments(self, num_classes, with_logits):
        """An image encoder without a head, or with the projection of the image-text model of its weights."""
        source = self.recipe.model.weights
        if source is not None and self._published is not None:
            width = self._published.config.embedding_dim
            if open_checkpoint(source).classes == width:
                return {"classes": width, "classifier_activation": None}
        return {"include_top": False}

    def build_learner(self, model):
        config = self._text_config(model)
        width = model.output_shape[-1]
        if config.embedding_dim != width:
            raise InputError(
                f"The text encoder returns {config.embedding_dim} numbers, but the image encoder {width}. "
                f"Choose encoders of the same width, or a new text encoder with text.config."
            )
        try:
            learner = keras_vit.ImageTextModel(
                model, config, self.recipe.fit.loss, self._tokenizer, name=self.recipe.name
            )
        except (ValueError, TypeError, OSError, ImportError) as error:
            raise InputError(without_call(error)) from error
        frozen = {"image": learner.image_encoder, "text": learner.text_encoder}.get(self.recipe.text.frozen)
        for layer in frozen.layers if frozen else ():
            layer.trainable = False
        return learner

    def _text_config(self, model):
        if self._published is not None:
            if self._published.activation != self.recipe.fit.loss:
                raise InputError(
                    f"The text encoder was trained with a {self._published.activation}. Set fit.loss="
                    f"{self._published.activation}. Received: fit.loss={self.recipe.fit.loss}"
                )
            return self._published.config
        fields = {"pooling": "end", **self.recipe.text.config}
        if fields["pooling"] == "end":
            fields["end_id"] = _END_ID
        return keras_vit.TextConfig(
            vocabulary_size=self._tokenizer.vocabulary_size, projection_dim=model.output_shape[-1], **fields
        )

    def load_weights(self, learner):
        """Loads a published text encoder. If the image encoder is from the same file, so are the scale and the bias."""
        if self._published is not None:
            options = self.recipe
            source = options.text.weights or options.model.weights
            published = keras_vit.ImageTextModel.from_pretrained(source, self._tokenizer)
            learner.text_encoder.set_weights(published.text_encoder.get_weights())
            if source == options.model.weights:
                learner.similarity_layer.set_weights(published.similarity_layer.get_weights())

    def graph(self, learner, model):
        return [learner.input["images"], learner.input["token_ids"]], learner.output

    def build_objective(self, learner, dataset):
        return ContrastiveObjective(learner.activation)

    def build_metric(self, learner, dataset):
        return RecallInBatch(name=self.metric.name)

    def saved_model(self, model, learner):
        return learner

    def finish(self, model, dataset):
        """Texts are no classes."""

    def evaluate(self, model, dataset, splits):
        return evaluate(model, dataset, splits, self.recipe)

    def evaluation_text(self, evaluation):
        return retrieval_text(evaluation)

    def results(self, evaluation):
        recalls = {
            f"test_{prefix}recall_at_{most}": recall
            for prefix, by_most in (("", evaluation.of_texts), ("image_", evaluation.of_images))
            for most, recall in by_most.items()
        }
        return recalls | {"test_images": evaluation.num_images, "test_texts": evaluation.num_texts}

    def report(self, run, dataset, state, evaluation, model):
        write_retrieval_report(run, self.recipe, state, evaluation, model)
        return self.results(evaluation)

    def next_commands(self, folder, samples):
        return [f"evaluate {folder}", f'explain {folder} --texts "a text"', f"export {folder}"]


class ContrastiveObjective:
    """The contrastive loss of a batch, as the loss of each of its images (`keras_vit.text.contrastive`).

    The batch is that of all devices. Images of weight 0, which fill the last batch of an epoch, do not count. Equal
    images or texts in a batch are not recognised.

    Args:
        activation: `"softmax"` or `"sigmoid"`.
    """

    def __init__(self, activation):
        self.activation = activation

    def __call__(self, labels, outputs, weights):
        """The losses, float32 (B,), of the outputs `image` and `text` of an image-text model."""
        loss, _ = loss_over_replicas(outputs["image"], outputs["text"], self.activation, weights > 0)
        return ops.broadcast_to(loss, (ops.shape(outputs["image"])[0],))


class RecallInBatch(keras.metrics.Mean):
    """The share of images whose own text has the largest logit of all texts of the batch of a device."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        logits = ops.matmul(y_pred["image"], ops.transpose(y_pred["text"]))
        if sample_weight is not None:
            logits = ops.where(ops.cast(sample_weight, "float32") > 0, logits, -1e9)
        is_found = ops.argmax(logits, axis=1) == ops.arange(ops.shape(logits)[0])
        super().update_state(ops.cast(is_found, "float32"), sample_weight)
