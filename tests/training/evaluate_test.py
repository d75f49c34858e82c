"""How good a model is: streamed, the figures are those of all images at once."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import sklearn.neighbors
import tensorflow as tf
import tensorflow_datasets as tfds

import keras_vit
from keras_vit.label_spaces import imagenet1k_classes
from keras_vit.preprocessing import preprocessing_layer
from training.__main__ import main
from training.assignments import override
from training.data import Dataset
from training.datasets.objectnet import imagenet_classes
from training.distribution import Engine
from training.errors import InputError
from training.evaluate import NUM_MISTAKES, Evaluation, describe, evaluate, evaluate_source, nearest_neighbour_accuracy
from training.losses import build_loss
from training.metrics import calibration
from training.runs import open_run
from training.sources import IndexedSource

NAMES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu")


def build(activation):
    """A model with the same random weights, whatever makes its outputs probabilities."""
    config = keras_vit.ViTConfig(patch_size=4, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20)
    arguments = {"input_shape": (8, 12, 3), "classes": 7, "include_preprocessing": True}
    model = keras_vit.ViT(config, **arguments, classifier_activation=activation)
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(0, 0.5, weight.shape) for weight in model.weights])
    return model


@pytest.fixture(scope="module")
def model():
    return build("softmax")


@pytest.fixture(scope="module")
def with_logits():
    return build(None)


def random_images(count):
    return np.random.default_rng(1).integers(0, 256, (count, 8, 12, 3), "uint8")


def dataset_of(images, labels):
    """A data set with a test split of images and, for each, its class or its classes."""
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
    """Where images may have several classes, and sigmoids tell each of them."""
    model, recipe = build("sigmoid"), override(brief_recipe, ["fit.batch_size=10", "fit.loss=sigmoid"])
    images = random_images(11)
    labels = [[i % 7, (i + 2) % 7][: i % 3] for i in range(11)]  # No class, one, or two.
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
    found = Evaluation(np.eye(7, dtype=bool)[labels], probabilities, NAMES)
    predictions = probabilities.argmax(axis=1)
    assert found.accuracy == pytest.approx(sklearn.metrics.accuracy_score(labels, predictions))
    assert found.top5_accuracy == pytest.approx(sklearn.metrics.top_k_accuracy_score(labels, probabilities, k=5))
    assert found.loss == pytest.approx(sklearn.metrics.log_loss(labels, probabilities))
    assert found.mean_confidence == pytest.approx(probabilities.max(axis=1).mean())
    np.testing.assert_array_equal(found.confusion, sklearn.metrics.confusion_matrix(labels, predictions))
    assert f"accuracy {found.accuracy:.2%}" in str(found)
    assert Evaluation(np.eye(5, dtype=bool), np.eye(5), NAMES[:5]).top5_accuracy is None


def test_one_of_several_right_classes_is_enough():
    labels = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 0]], bool)
    probabilities = np.array([[0.2, 0.7, 0.1], [0.2, 0.5, 0.3], [0.1, 0.8, 0.1]])
    found = Evaluation(labels, probabilities, NAMES[:3])
    np.testing.assert_array_equal(found.is_right, [True, False, True])
    assert found.loss == pytest.approx(-np.log([0.9, 0.5, 0.8]).mean())
    assert found.calibration.expected_error == pytest.approx((abs(0.7 - 1) + abs(0.5 - 0) + abs(0.8 - 1)) / 3)
    with pytest.raises(ValueError, match="one right class an image"):
        _ = found.confusion


def test_of_sigmoids_the_cross_entropies_of_all_classes_are_added_up():
    rng = np.random.default_rng(0)
    labels, probabilities = rng.uniform(size=(60, 7)) < 0.3, rng.uniform(size=(60, 7)).astype("float32")
    labels[:, 0] |= ~labels.any(axis=1)
    found = Evaluation(labels, probabilities, NAMES, has_sigmoids=True)
    of_classes = [sklearn.metrics.log_loss(labels[:, c], probabilities[:, c].astype(float)) for c in range(7)]
    assert found.loss == pytest.approx(sum(of_classes), rel=1e-5)
    scores = probabilities.max(axis=1)
    assert found.calibration.expected_error == pytest.approx(calibration(scores, found.is_right).expected_error)
    saturated = Evaluation(np.eye(3, dtype=bool)[:1], np.array([[1, 1, 0]], "float32"), NAMES[:3], has_sigmoids=True)
    assert saturated.loss == pytest.approx(24 * np.log(2), rel=1e-5)  # The next number below 1 is 1 - 2**-24.
    assert lines_of(found)[2].endswith(" nats, the sum over a sigmoid for each class")


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


def test_nearest_neighbour_holds_a_batch_of_the_test(model, brief_recipe, monkeypatch):
    images, sizes = random_images(60), []
    labels = [[i % 7, (i + 2) % 7][: i % 3] for i in range(51)]  # No class, one, or two, of which one is enough.
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


def lines_of(evaluation):
    return describe(evaluation).splitlines()


def test_words_say_what_the_figures_are():
    probabilities = np.full((200, 6), 0.05)
    probabilities[:, 2] = 0.75
    labels = np.eye(6, dtype=bool)[[2] * 160 + [4] * 40]
    lines = lines_of(Evaluation(labels, probabilities, NAMES[:6], num_unlabelled=3))
    interval = scipy.stats.binomtest(160, 200).proportion_ci(method="wilson")
    interval = f"95% Wilson interval {interval.low:.2%} to {interval.high:.2%}"
    assert lines[0] == f"top-1 accuracy     80.00% (160 of 200 images; {interval})"
    assert lines[1].startswith("top-5 accuracy     ")
    assert lines[2] == f"cross-entropy      {-0.8 * np.log(0.75) - 0.2 * np.log(0.05):.4f} nats"
    assert lines[3] == "calibration error  5.00% (expected, 15 bins; mean confidence 75.00%)"
    assert lines[4:] == [
        "3 images without a right class are left out.",
        "",
        "Classes, worst first:",
        "class  images  right  accuracy  most often taken for",
        "elk        40      0      0.0%  cat (40)",
        "cat       160    160    100.0%",
        "ant         0      0      none",
        "bee         0      0      none",
        "dog         0      0      none",
        "fox         0      0      none",
    ]


def test_of_many_classes_the_worst_are_named():
    probabilities = np.eye(30)
    probabilities[17] = probabilities[3]
    lines = lines_of(Evaluation(np.eye(30, dtype=bool), probabilities, tuple(f"class {i}" for i in range(30))))
    [heading] = [i for i, line in enumerate(lines) if line == "The 20 worst of 30 classes, worst first:"]
    assert lines[heading + 2].split("  ")[0] == "class 17"
    assert len(lines[heading + 2 :]) == 20


class Tiny(tfds.core.GeneratorBasedBuilder):
    """Nine images of 8 x 12 pixels in three classes, found by its name like any data set of TFDS."""

    VERSION = tfds.core.Version("1.0.0")
    label = {"label": tfds.features.ClassLabel(names=NAMES)}  # noqa: RUF012

    def _info(self):
        features = {"image": tfds.features.Image(shape=(8, 12, 3)), **self.label}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"validation": self._generate_examples()}

    def _generate_examples(self):
        for i, image in enumerate(random_images(9)):
            yield i, {"image": image} | self.labels_of(i)

    @staticmethod
    def labels_of(i):
        return {"label": i % 3}


class TinyReal(Tiny):
    """The same images, with the features of `imagenet2012_real`: a different number of right classes each."""

    label = {  # noqa: RUF012
        "original_label": tfds.features.ClassLabel(names=NAMES),
        "real_label": tfds.features.Sequence(tfds.features.ClassLabel(names=NAMES)),
    }

    @staticmethod
    def labels_of(i):
        return {"original_label": i % 3, "real_label": list(range(i % 4))}


class TinyTrain(Tiny):
    """The same images in a training split only."""

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}


@pytest.fixture(scope="module")
def run(model, brief_recipe, tmp_path_factory):
    """A run on a data set that is not `tiny`, but has its classes."""
    changes = ["data.train_split=train[:90%]", "data.validation_fraction=0", "data.test_split=train[90%:]"]
    runs = tmp_path_factory.mktemp("runs")
    run = open_run(override(brief_recipe, changes), Dataset(NAMES, {}), runs, None, Engine(None))
    model.save(run.model)
    return run


def test_a_run_is_evaluated_on_reassessed_labels(run, model, tfds_directory, capsys):
    data = ["data.dataset=tiny_real", "data.test_split=validation[1:]", "fit.batch_size=10"]
    assert not main(["evaluate", str(run.folder), *data])
    output = capsys.readouterr().out
    examples = tfds.load("tiny_real", split="validation[1:]", data_dir=tfds_directory).as_numpy_iterator()
    images, labels = zip(*((example["image"], example["real_label"]) for example in examples), strict=True)
    predictions = probabilities_of(model, np.stack(images)).argmax(axis=1)
    right = sum(prediction in of_image for prediction, of_image in zip(predictions, labels, strict=True))
    labelled = sum(len(of_image) > 0 for of_image in labels)
    assert 0 < right < labelled < 8
    assert "tiny_real, test split\n" in output
    assert f"top-1 accuracy     {right / labelled:.2%} ({right} of {labelled} images;" in output
    assert "ReaL (arXiv 2006.07159)" in output
    assert f"{8 - labelled} images without a right class are left out." in output


def test_a_split_of_other_data_may_be_one_that_others_would_learn_from(run):
    data = ["data.dataset=tiny_train", "data.test_split=train[:5]", "fit.batch_size=10"]
    assert "of 5 images" in evaluate_source(run.folder, data)
    with pytest.raises(InputError, match=r"the test split 'train\[:5\]' of tiny_train both hold train\[0:5\]"):
        evaluate_source(run.folder, data, "all")  # Some would count twice.


@pytest.mark.parametrize(
    ("assignments", "split", "message"),
    [
        (["optimizer.learning_rate=1"], "test", "optimizer.learning_rate cannot be changed for a trained model"),
        (["data.test_split=train"], "test", "data.test_split cannot be changed"),
        (["data.dataset=tiny", "data.validation_fraction=0.5"], "test", "data.validation_fraction cannot be changed"),
        (["data.dataset=tiny"], "validation", "no validation split. It has: test"),
        ([], "test", "The model knows the classes ant, bee, cat, dog, elk, fox, gnu; the data set has 0, 1"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(run, assignments, split, message):
    with pytest.raises(InputError, match=message):
        evaluate_source(run.folder, assignments, split)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is not the folder of a run: it has no recipe\.json"):
        evaluate_source(tmp_path)


def test_of_many_other_classes_the_first_are_named(run, tmp_path):
    other = dataclasses.replace(run, folder=tmp_path)
    facts = json.loads(run.recipe.read_text()) | {"class_names": [f"class {i}" for i in range(1000)]}
    other.recipe.write_text(json.dumps(facts))
    other.model.symlink_to(run.model)
    with pytest.raises(InputError, match=r"class 9, … \(1,000 in all\); the data set has ant, bee"):
        evaluate_source(other.folder, ["data.dataset=tiny"])


@pytest.fixture(scope="module")
def imagenet_model(tmp_path_factory):
    """The path of a tiny classifier of ImageNet-1k, and the model."""
    config = keras_vit.ViTConfig(patch_size=4, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20)
    model = keras_vit.ViT(config, input_shape=(8, 8, 3), classes=1000, include_preprocessing=True)
    layer = preprocessing_layer(model)
    layer.set_protocol(layer.mean, layer.std, layer.resize, layer.crop, layer.interpolation, "imagenet1k")
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(0, 0.7, weight.shape) for weight in model.weights])
    path = tmp_path_factory.mktemp("models") / "imagenet.keras"
    model.save(path)
    return path, model


def write_photographs(directory, folders):
    """Four images in each of some folders, 8 x 8 pixels in a frame of two; returns {path: pixels in the frame}."""
    rng, written = np.random.default_rng(0), {}
    for folder in folders:
        for i in range(4):
            image = np.full((12, 12, 3), (255, 0, 0), "uint8")
            image[2:-2, 2:-2] = rng.integers(0, 256, (8, 8, 3))
            path = directory / folder / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(tf.io.encode_png(image).numpy())
            written[path] = image[2:-2, 2:-2]
    return written


def test_a_model_of_imagenet_is_evaluated_on_objectnet(imagenet_model, tmp_path):
    path, model = imagenet_model
    folders = ("air_freshener", "bicycle", "chair", "mug", "pen", "tie", "wok")
    images = write_photographs(tmp_path / "images", folders)
    data = ["data.dataset=folder", f"data.directory={tmp_path / 'images'}", "fit.batch_size=10"]
    lines = evaluate_source(path, data, "all").splitlines()

    shared = {folder: list(imagenet_classes()[folder]) for folder in folders if folder != "air_freshener"}
    right = in_top5 = 0
    all_scores = probabilities_of(model, np.stack(list(images.values())))
    for photograph, scores in zip(images, all_scores, strict=True):
        label = photograph.parent.name
        if label in shared:
            ranked = sorted(shared, key=lambda folder: -scores[shared[folder]].max())
            right, in_top5 = right + (ranked[0] == label), in_top5 + (label in ranked[:5])
    assert 0 < right < in_top5 < 24
    assert lines[:2] == [
        "folder, all images",
        "ObjectNet: of the model's 1,000 outputs those of the 6 shared classes are compared; 4 images of other classes "
        "are left out.",
    ]
    assert lines[2].startswith(f"top-1 accuracy     {right / 24:.2%} ({right} of 24 images;")
    assert lines[3].startswith(f"top-5 accuracy     {in_top5 / 24:.2%} ({in_top5} of 24 images;")


def test_folders_of_some_classes_of_imagenet_are_other_classes(imagenet_model, tmp_path):
    write_photographs(tmp_path, [wnid for wnid, _ in imagenet1k_classes()[:2]])
    with pytest.raises(InputError, match=r"\(1,000 in all\); the data set has n01440764, n01443537"):
        evaluate_source(imagenet_model[0], ["data.dataset=folder", f"data.directory={tmp_path}"], "all")


@pytest.mark.parametrize(
    ("split", "message"), [("all", "was trained on images of these data"), ("train", r"ant.*the data set has 0, 1")]
)
def test_all_images_of_its_own_data_are_refused(run, split, message):
    with pytest.raises(InputError, match=message):
        evaluate_source(run.folder, [], split)


def test_classes_that_are_not_known_are_asked_for(model, tmp_path):
    model.save(tmp_path / "model.keras")
    with pytest.raises(InputError, match=r"The classes of .* are not known"):
        evaluate_source(tmp_path / "model.keras", ["data.dataset=digits"])
