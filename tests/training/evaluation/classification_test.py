"""Metrics of a model that are computed batch by batch equal those of all images at once."""

import keras
import numpy as np
import pytest
import sklearn.metrics
import sklearn.neighbors
import tensorflow as tf

import keras_vit
from training.data.dataset import Dataset
from training.data.sources import IndexedSource
from training.errors import InputError
from training.evaluation import classification
from training.evaluation.classification import NUM_MISTAKES, Classification, evaluate, nearest_neighbour_accuracy
from training.evaluation.metrics import calibration
from training.recipe.assignments import override
from training.reports.text import classification_text
from training.tasks.losses import build_loss

NAMES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu")


def build(activation):
    """A model with random weights that are the same for every activation of the outputs."""
    config = keras_vit.ViTConfig(patch_size=4, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20)
    arguments = {"input_shape": (8, 12, 3), "classes": 7, "include_preprocessing": True}
    model = keras_vit.ViT(config, **arguments, classifier_activation=activation)
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(0, 0.5, weight.shape) for weight in model.weights])
    return model


@pytest.fixture(autouse=True)
def quick_decoding(monkeypatch):
    """Decodes PNG files only."""

    def decode(sample):
        return sample | {"image": tf.ensure_shape(tf.io.decode_png(sample["image"], channels=3), (8, 12, 3))}

    monkeypatch.setattr(classification, "sample_decoder", lambda model: decode)


@pytest.fixture(scope="module")
def model():
    return build("softmax")


@pytest.fixture(scope="module")
def with_logits():
    return build(None)


def random_images(count):
    return np.random.default_rng(1).integers(0, 256, (count, 8, 12, 3), "uint8")


def dataset_of(images, labels):
    """A data set with a test split. Each image has one class or a list of classes."""
    encoded = tf.constant([tf.io.encode_png(image).numpy() for image in images])
    labels = tf.ragged.constant(labels, tf.int64) if isinstance(labels[0], list) else tf.constant(labels, tf.int64)

    def read(index):
        return {"image": encoded[index], "label": labels[index]}

    return Dataset(NAMES, {"test": IndexedSource(len(images), read)})


def probabilities_of(model, images):
    return keras.ops.convert_to_numpy(model(images.astype("float32"), training=False))


def assert_loss_is_that_of_training(found, recipe, images, with_logits):
    expected = build_loss(recipe)(found.labels.astype("float32"), probabilities_of(with_logits, images))
    assert found.loss == pytest.approx(keras.ops.convert_to_numpy(expected).mean(), rel=1e-5)


def test_streamed_is_what_the_model_makes_of_all_images_at_once(model, with_logits, brief_recipe):
    images, labels = random_images(53), np.random.default_rng(2).integers(0, 7, 53)
    recipe = override(brief_recipe, ["fit.batch_size=10"])
    found = evaluate(model, dataset_of(images, labels), "test", recipe)
    assert_loss_is_that_of_training(found, recipe, images, with_logits)
    probabilities = probabilities_of(model, images)
    np.testing.assert_allclose(found.probabilities, probabilities, atol=1e-6)
    np.testing.assert_array_equal(found.labels, np.eye(7, dtype=bool)[labels])
    assert (found.class_names, found.num_unlabelled) == (NAMES, 0)

    predictions = probabilities.argmax(axis=1)
    wrong = [i for i in range(53) if predictions[i] != labels[i]]
    most_confident = sorted(wrong, key=lambda i: -probabilities[i].max())[:NUM_MISTAKES]
    assert len(wrong) > 2 * NUM_MISTAKES
    assert list(found.mistakes) == most_confident
    assert list(found.examples) == [0, 10, 20, 31, 41, 52]
    for index, image in [*found.mistakes.items(), *found.examples.items()]:
        np.testing.assert_array_equal(image, images[index])
        assert image.base is None, "a view keeps its batch in memory"


def test_images_without_a_right_class_are_left_out(with_logits, brief_recipe):
    """Images may have several classes here, and the model has sigmoids."""
    model, recipe = build("sigmoid"), override(brief_recipe, ["fit.batch_size=10", "fit.loss=sigmoid"])
    images = random_images(11)
    labels = [[i % 7, (i + 2) % 7][: i % 3] for i in range(11)]  # Each image has zero, one or two classes.
    kept = [i for i in range(11) if labels[i]]
    found = evaluate(model, dataset_of(images, labels), "test", recipe)
    assert_loss_is_that_of_training(found, recipe, images[kept], with_logits)
    assert found.num_unlabelled == 4
    assert found.has_several_labels
    np.testing.assert_array_equal(found.labels, [np.isin(range(7), labels[i]) for i in kept])
    np.testing.assert_allclose(found.probabilities, probabilities_of(model, images[kept]), atol=1e-6)
    for index, image in found.mistakes.items():
        np.testing.assert_array_equal(image, images[kept[index]])
    with pytest.raises(InputError, match="None of the 2 images of the test split has a label"):
        evaluate(model, dataset_of(images[:2], [[], []]), "test", brief_recipe)


def test_figures_are_scikit_learns():
    rng = np.random.default_rng(0)
    labels, probabilities = rng.integers(0, 7, 60), rng.dirichlet(np.ones(7), 60)
    found = Classification(np.eye(7, dtype=bool)[labels], probabilities, NAMES)
    predictions = probabilities.argmax(axis=1)
    assert found.accuracy == pytest.approx(sklearn.metrics.accuracy_score(labels, predictions))
    assert found.top5_accuracy == pytest.approx(sklearn.metrics.top_k_accuracy_score(labels, probabilities, k=5))
    assert found.loss == pytest.approx(sklearn.metrics.log_loss(labels, probabilities))
    assert found.mean_confidence == pytest.approx(probabilities.max(axis=1).mean())
    np.testing.assert_array_equal(found.confusion, sklearn.metrics.confusion_matrix(labels, predictions))
    assert f"accuracy {found.accuracy:.2%}" in str(found)
    assert Classification(np.eye(5, dtype=bool), np.eye(5), NAMES[:5]).top5_accuracy is None


def test_one_of_several_right_classes_is_enough():
    labels = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 0]], bool)
    probabilities = np.array([[0.2, 0.7, 0.1], [0.2, 0.5, 0.3], [0.1, 0.8, 0.1]])
    found = Classification(labels, probabilities, NAMES[:3])
    np.testing.assert_array_equal(found.is_right, [True, False, True])
    assert found.loss == pytest.approx(-np.log([0.9, 0.5, 0.8]).mean())
    assert found.calibration.expected_error == pytest.approx((abs(0.7 - 1) + abs(0.5 - 0) + abs(0.8 - 1)) / 3)
    with pytest.raises(ValueError, match="one right class per image"):
        _ = found.confusion
    assert "right classes, as in ReaL (arXiv 2006.07159); any of them counts." in classification_text(found)


def test_of_sigmoids_the_cross_entropies_of_all_classes_are_added_up():
    rng = np.random.default_rng(0)
    labels, probabilities = rng.uniform(size=(60, 7)) < 0.3, rng.uniform(size=(60, 7)).astype("float32")
    labels[:, 0] |= ~labels.any(axis=1)
    found = Classification(labels, probabilities, NAMES, has_sigmoids=True)
    of_classes = [sklearn.metrics.log_loss(labels[:, c], probabilities[:, c].astype(float)) for c in range(7)]
    assert found.loss == pytest.approx(sum(of_classes), rel=1e-5)
    scores = probabilities.max(axis=1)
    assert found.calibration.expected_error == pytest.approx(calibration(scores, found.is_right).expected_error)
    saturated = Classification(
        np.eye(3, dtype=bool)[:1], np.array([[1, 1, 0]], "float32"), NAMES[:3], has_sigmoids=True
    )
    assert saturated.loss == pytest.approx(24 * np.log(2), rel=1e-5)  # The largest value below 1 is 1 - 2**-24.
    assert classification_text(found).splitlines()[2].endswith(" nats, summed over the sigmoids of all classes")


def test_nearest_neighbour_equals_numpy(model, brief_recipe):
    images, labels = random_images(60), np.random.default_rng(3).integers(0, 7, 60)
    images[labels > 3, :4] //= 2
    parts = {"validation": slice(0, 40), "test": slice(40, 60)}
    splits = {name: dataset_of(images[part], labels[part]).splits["test"] for name, part in parts.items()}
    distances = ((images[40:, None].astype(float) - images[None, :40]) ** 2).sum((2, 3, 4))
    expected = (labels[distances.argmin(axis=1)] == labels[40:]).mean()
    recipe = override(brief_recipe, ["fit.batch_size=10"])
    assert 0 < expected < 1
    assert nearest_neighbour_accuracy(model, Dataset(NAMES, splits), recipe) == pytest.approx(expected)
    assert nearest_neighbour_accuracy(model, Dataset(NAMES, splits), recipe, max_values=40 * 8 * 12 * 3 - 1) is None


@pytest.mark.slow
def test_nearest_neighbour_holds_a_batch_of_the_test(model, brief_recipe, monkeypatch):
    images, sizes = random_images(60), []
    labels = [[i % 7, (i + 2) % 7][: i % 3] for i in range(51)]  # Zero to two classes. One match is enough.
    splits = {"test": dataset_of(images[9:], labels).splits["test"]}
    splits["validation"] = dataset_of(images[:9], [i % 7 for i in range(9)]).splits["test"]
    usual = sklearn.neighbors.KNeighborsClassifier.predict

    def predict(classifier, pixels):
        sizes.append(len(pixels))
        return usual(classifier, pixels)

    monkeypatch.setattr(sklearn.neighbors.KNeighborsClassifier, "predict", predict)
    accuracy = nearest_neighbour_accuracy(model, Dataset(NAMES, splits), override(brief_recipe, ["fit.batch_size=10"]))
    assert max(sizes) <= 10
    assert sum(sizes) == 34
    distances = ((images[9:, None].astype(float) - images[None, :9]) ** 2).sum((2, 3, 4))
    nearest = distances.argmin(axis=1) % 7
    assert accuracy == pytest.approx(sum(nearest[i] in of_image for i, of_image in enumerate(labels)) / 34)
