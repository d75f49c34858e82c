import json
import pathlib

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.architectures import read_architecture
from keras_vit.export import saved_model, writing
from keras_vit.export.answers import Classes
from keras_vit.label_spaces import imagenet1k_classes
from tests.export.exports import LABELS
from tests.models.tiny import tiny_model
from tests.pictures import encoded, picture
from tests.serving.recorded_requests import OF_FILES, OF_PIXELS
from tests.test_case import TENSORFLOW, assert_close, quantize, randomize, to_numpy

tensorflow_only = pytest.mark.skipif(not TENSORFLOW, reason="elsewhere_test.py tests other backends")
CONFIG = keras_vit.ViTConfig(patch_size=(4, 3), hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20)


def _model(**changes):
    arguments = {"input_shape": (8, 12, 3), "classes": 4} | changes
    return randomize(keras_vit.ViT(CONFIG, **arguments), scale=0.5)


@tensorflow_only
def test_folder(pets):
    _, path = pets
    assert (path.parent.name, path.name) == ("pets", "1")
    assert {child.name for child in path.parent.iterdir() if child.is_dir()} == {"1"}
    files = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    assert files >= {"saved_model.pb", "keras_vit.json", "assets/labels.txt"}
    assert "assets.extra/tf_serving_warmup_requests" in files
    assert (path / "assets" / "labels.txt").read_text().splitlines() == LABELS
    assert path.stat().st_mode & 0o777 == path.parent.stat().st_mode & 0o777  # The server may run as another user.


@tensorflow_only
def test_what_is_known_of_the_model(pets):
    model, path = pets
    facts = json.loads((path / "keras_vit.json").read_text())
    assert (facts["name"], facts["version"], facts["classes"], facts["input_shape"]) == ("pets", 1, 6, [16, 24, 3])
    assert facts["signatures"] == sorted([*OF_FILES, *OF_PIXELS])
    assert read_architecture(facts["config"]) == keras_vit.describe(model).config
    assert facts["preprocessing"]["resize"] == [16, 24]
    assert facts["weights"] == {"source": None, "licence": None, "adaptations": {}}
    assert facts["versions"]["keras"] == keras.version()
    assert set(facts["parity"]["max_difference"]) == set(facts["signatures"])
    assert 0 <= max(facts["parity"]["max_difference"].values()) <= 1e-5
    assert facts["bytes"]["weights_in_float32"] == 4 * model.count_params()


class _NothingWritten:
    """A substitute for the writing process, for tests of the other steps of an export."""

    options = None
    fails = False

    def __call__(self, function, model, folder, answers, **options):
        self.options = options
        (pathlib.Path(folder) / "saved_model.pb").write_text("model")
        if self.fails:
            raise OSError("disk full")
        pixels = np.zeros((1, *model.input_shape[1:]), "uint8")
        probabilities = Classes.compute(model, keras_vit.preprocess_input(pixels, model))
        np.savez(answers, **{"pixels": pixels, "serving_default/probabilities": to_numpy(probabilities)})


@pytest.fixture
def nothing_written(monkeypatch, eagerly):
    stand_in = _NothingWritten()
    monkeypatch.setattr(saved_model, "with_tensorflow", stand_in)
    return stand_in


def _versions(path):
    return {child.name for child in path.iterdir() if child.is_dir()}


def _perceptron(classes=4, **settings):
    """The cheapest model, for tests in which the predictions do not matter."""
    layer = keras_vit.Preprocessing(resize=(8, 12), architecture=CONFIG.to_dict(), **settings)
    layers = [layer, keras.layers.Flatten(), keras.layers.Dense(classes, activation="softmax")]
    return keras.Sequential([keras.Input((8, 12, 3)), *layers])


@pytest.mark.parametrize(
    ("label_space", "classes", "labels"),
    [
        ("imagenet1k", 1000, [name for _, name in imagenet1k_classes()]),
        ("imagenet1k", 2, ["0", "1"]),
        (["ant", "ant"], 2, ["ant", "ant"]),
        (["ant", "bee"], 3, ["0", "1", "2"]),
    ],
)
def test_default_labels(label_space, classes, labels, recwarn):
    assert saved_model._labels(_perceptron(classes, label_space=label_space), None) == labels
    assert not recwarn


@pytest.mark.combination("labels= with a repeated name", "a warning names it")
def test_repeated_labels():
    with pytest.warns(UserWarning, match="labels contains 'ant' more than once. Clients can only distinguish these"):
        assert saved_model._labels(_perceptron(3), ["ant", "bee", "ant"]) == ["ant", "bee", "ant"]


def test_weights_that_were_adapted_are_named(tmp_path, nothing_written):
    published = randomize(tiny_model(num_layers=1, classifier_activation="softmax"))
    keras_vit.save_weights(published, tmp_path / "published.npz", "google")
    arguments = {"input_shape": (12, 9, 3), "classes": 3, "grid_size": (2, 3)}
    model = keras_vit.from_pretrained(tmp_path / "published.npz", **arguments)
    folder = keras_vit.export_saved_model(model, tmp_path / "pets", version=7, name="others")
    facts = json.loads((folder / "keras_vit.json").read_text())
    adaptations = keras_vit.describe(model).adaptations
    assert {path.split("/")[0] for path in adaptations} == {"position_embedding", "predictions"}
    source = str(tmp_path / "published.npz")
    assert facts["weights"] == {"source": source, "licence": None, "adaptations": adaptations}
    assert (facts["name"], facts["version"], facts["options"]["top_k"]) == ("others", 7, 5)


def test_a_failure_leaves_nothing_behind(tmp_path, nothing_written):
    model = _perceptron()
    keras_vit.export_saved_model(model, tmp_path, version=1)
    nothing_written.fails = True
    for version, overwrite in ((2, False), (1, True)):
        with pytest.raises(OSError, match="disk full"):
            keras_vit.export_saved_model(model, tmp_path, version=version, overwrite=overwrite)
        assert _versions(tmp_path) == {"1"}
        assert {child.name for child in (tmp_path / "1").iterdir()} == {"saved_model.pb", "keras_vit.json"}


def test_of_two_exports_at_once_the_second_replaces_nothing(tmp_path, nothing_written, monkeypatch):
    def meanwhile(*arguments, **options):
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "theirs").write_text("theirs")
        nothing_written(*arguments, **options)

    monkeypatch.setattr(saved_model, "with_tensorflow", meanwhile)
    with pytest.raises(FileExistsError, match="Another export created it meanwhile"):
        keras_vit.export_saved_model(_perceptron(), tmp_path)
    assert [child.name for child in (tmp_path / "1").iterdir()] == ["theirs"]
    assert _versions(tmp_path) == {"1"}


def test_an_existing_version_is_refused_unless_it_may_be_replaced(tmp_path, nothing_written):
    model = _perceptron()
    folder = keras_vit.export_saved_model(model, tmp_path, version=2)
    (folder / "mine").write_text("mine")
    with pytest.raises(FileExistsError, match=r"2 exists. Give another version, or overwrite=True"):
        keras_vit.export_saved_model(model, tmp_path, version=2)
    assert (folder / "mine").exists()
    assert keras_vit.export_saved_model(model, tmp_path, version=2, overwrite=True) == folder
    assert {child.name for child in folder.iterdir()} == {"saved_model.pb", "keras_vit.json"}
    keras_vit.export_saved_model(model, tmp_path, version=10)
    assert _versions(tmp_path) == {"2", "10"}


@pytest.mark.combination(
    "labels= with an empty name, a NUL, a line break of any kind, or a wrong number of names", "refused"
)
def test_refused_arguments(tmp_path):
    model = _model()
    for arguments, message in (
        ({"version": "1"}, "version must be a positive integer.*Received: '1'"),
        ({"version": -1}, "version must be a positive integer.*Received: -1"),
        ({"labels": ["a", "b"]}, r"labels must be a list of names for the model's 4 classes. Received: \['a', 'b'\]"),
        ({"top_k": 0}, "top_k must be a positive integer. Received: 0"),
        ({"precision": "int4"}, "precision must be one of 'float32', 'bfloat16', 'int8'. Received: 'int4'"),
        ({"labels": ["a", "b", "c", "\ud800"]}, r"class 3 is not valid Unicode. Received: '\\ud800'"),
        ({"labels": ["a", "b", "c", "d\ne"]}, r"labels must have one line each.*class 3 .*Received: 'd\\ne'"),
        *(({"labels": ["a", "b", f"c{end}", "d"]}, "must have one line each.*class 2 ") for end in ("\r", "\u2028")),
        ({"labels": ["a", "", "c", "d"]}, "labels must have one line each.* class 1 is empty"),
        ({"labels": ["a\0", "b", "c", "d"]}, "labels must have one line each.* class 0 contains a .* NUL character"),
        ({"batch_sizes": (1, 0)}, "batch_sizes must be a positive integer. Received: 0"),
        ({"batch_sizes": ()}, "batch_sizes must contain at least one"),
        ({"name": "my pets"}, "name must be made of letters.*Received: 'my pets'"),
        ({"max_image_pixels": 0}, "max_image_pixels must be a positive integer. Received: 0"),
        ({"tolerance": float("nan")}, "tolerance must be at least 0. Received: nan"),
        ({"min_agreement": 95}, r"min_agreement must be in \[0, 1\]. Received: 95"),
        ({"images": ["nowhere.jpg"]}, "images must be paths of files. Received: nowhere.jpg"),
        ({"images": []}, "images must be paths of files. Received: none"),
        ({"signatures": ["serving_default", "classify"]}, "signatures must be one of 'serving_default', .*'classify'"),
    ):
        with pytest.raises(ValueError, match=message):
            keras_vit.export_saved_model(model, tmp_path, **arguments)
    with pytest.raises(TypeError, match=r"images must be a list of paths of image files.*Received: ndarray"):
        keras_vit.export_saved_model(model, tmp_path, images=np.zeros((2, 8, 12, 3)))
    for other, message in (
        (_model(include_top=False, pooling=None), "Only models that return classes.*layer 'encoder_norm'"),
        (_model(input_shape=(None, None, 3)), "takes images of any size.*Give image_size=.height, width."),
        (keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]), "has one Preprocessing layer"),
    ):
        with pytest.raises(ValueError, match=message):
            keras_vit.export_saved_model(other, tmp_path)
    quantize(model, "int8", filters="hidden")
    with pytest.raises(ValueError, match=r"was quantized by Keras.* Received: precision='bfloat16'"):
        keras_vit.export_saved_model(model, tmp_path, precision="bfloat16")
    with pytest.raises(ValueError, match="must return probabilities, or logits"):
        keras_vit.export_saved_model(_model(classifier_activation="relu"), tmp_path)
    assert not list(tmp_path.iterdir())


@tensorflow_only
@pytest.mark.parametrize(
    ("valid", "name", "message"),
    [
        (True, "text.jpg", r"images must be JPEG.* files\. .*text\.jpg cannot be read"),
        (False, "picture.png", "cannot read all images of the comparison"),
    ],
)
def test_images_that_a_server_would_not_read_are_refused(valid, name, message, tmp_path, monkeypatch):
    """The signatures are replaced by ones that report the same validity for all images."""
    import tensorflow as tf

    def serve(image_bytes):
        return {"probabilities": tf.zeros([tf.size(image_bytes), 4]), "valid": tf.fill(tf.shape(image_bytes), valid)}

    signature = tf.function(serve, input_signature=[tf.TensorSpec([None], tf.string, "image_bytes")])
    monkeypatch.setattr(writing, "build_signatures", lambda *arguments, **options: {"serving_default": signature})
    (tmp_path / "text.jpg").write_text("no image")
    (tmp_path / "picture.png").write_bytes(encoded(picture(8, 12), "PNG"))
    with pytest.raises(ValueError, match=message):
        keras_vit.export_saved_model(_perceptron(), tmp_path / "exported", images=[tmp_path / name])
    assert not list((tmp_path / "exported").iterdir())


@tensorflow_only
def test_only_chosen_signatures_are_written(tmp_path):
    import tensorflow as tf

    chosen = {"serving_default", "predict_pixels"}
    options = {"precision": "int8", "jit_compile": True, "batch_sizes": (2, 5), "signatures": [*chosen]}
    folder = keras_vit.export_saved_model(_perceptron(), tmp_path, **options)
    facts = json.loads((folder / "keras_vit.json").read_text())
    assert set(facts["signatures"]) == set(facts["parity"]["max_difference"]) == chosen
    requests = tf.data.TFRecordDataset(str(folder / "assets.extra" / "tf_serving_warmup_requests"))
    requests = [request.numpy() for request in requests]
    assert [name.encode() in request for request in requests for name in chosen].count(True) == len(requests) == 2 * 2


@pytest.mark.slow
@tensorflow_only
@pytest.mark.combination("export_saved_model of a model under mixed_bfloat16", "an export that computes in bfloat16")
@pytest.mark.combination(
    "export_saved_model with precision='int8'", "a small difference from the model, which keras_vit.json contains"
)
def test_precisions(tmp_path):
    import tensorflow as tf

    model = _model(classifier_activation="softmax")
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        mixed = _model(classifier_activation="softmax")
    finally:
        keras.config.set_dtype_policy("float32")
    mixed.set_weights(model.get_weights())
    pixels = np.random.default_rng(0).integers(0, 256, (5, 8, 12, 3)).astype("uint8")
    expected = to_numpy(model(keras_vit.preprocess_input(pixels, model)))
    answers, differences = {}, {}
    for name, exported, precision in (
        ("mixed", mixed, "float32"),
        ("bfloat16", model, "bfloat16"),
        ("int8", model, "int8"),
    ):
        options = {"precision": precision, "min_agreement": 0, "signatures": ["serving_default", "predict_pixels"]}
        folder = keras_vit.export_saved_model(exported, tmp_path / name, **options)
        predict = tf.saved_model.load(str(folder)).signatures["predict_pixels"]
        answers[name] = predict(images=tf.constant(pixels))["probabilities"].numpy()
        parity = json.loads((folder / "keras_vit.json").read_text())["parity"]
        differences[name] = parity["max_difference"]["predict_pixels"]
    assert_close(answers["mixed"], answers["bfloat16"], 2e-3)
    for answer in answers.values():
        assert 1e-4 < np.abs(answer - expected).max() < 0.1
    assert differences["mixed"] < 1e-5 < min(differences["bfloat16"], differences["int8"])


def test_what_would_be_guessed_is_refused(tmp_path):
    inner = _model(include_top=False)
    rescaled = keras.Sequential(
        [keras.Input((8, 12, 3)), keras.layers.Rescaling(1 / 127.5, -1), inner, keras.layers.Dense(4)]
    )
    with pytest.raises(ValueError, match="changes pixels before its preprocessing layer"):
        keras_vit.export_saved_model(rescaled, tmp_path)
    with pytest.raises(ValueError, match="logits of at least two classes"):
        keras_vit.export_saved_model(_model(classes=1, classifier_activation=None), tmp_path)
    assert not list(tmp_path.iterdir())
