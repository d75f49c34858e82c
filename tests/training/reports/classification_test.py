"""The report of a run shows the results and needs no other files."""

import base64
import dataclasses
import html.parser
import io
import json
import types

import keras
import numpy as np
import PIL.Image
import pytest
import scipy.stats
from matplotlib.figure import Figure

import keras_vit
from training import recipes
from training.data.dataset import Dataset
from training.engine.distribution import Engine
from training.evaluation.classification import Classification
from training.recipe.assignments import leaves, override
from training.recipe.config import to_dict
from training.reports import classification as report
from training.reports import parts
from training.reports.classification import judge, write_report
from training.reports.figures import overlay_attention
from training.runs.folder import open_run
from training.tasks.losses import build_loss

_COLUMNS = ("epoch", "step", "learning_rate", "loss", "accuracy", "val_loss", "val_accuracy")
_ROWS = ((1, 7, 1e-3, 2.0, 0.3, 1.9, 0.25), (2, 14, 5e-4, 1.5, 0.5, 1.6, 0.45), (3, 21, 1e-6, 1.1, 0.625, 1.4, 0.5))
HISTORY = [dict(zip(_COLUMNS, row, strict=True)) for row in _ROWS]
FIGURES = {"loss", "accuracy", "learning_rate", "throughput", "calibration", "confidence", "confusion_matrix"}


@pytest.fixture(scope="module")
def model():
    config = keras_vit.ViTConfig(patch_size=3, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20)
    return keras_vit.ViT(config, input_shape=(9, 6, 1), classes=5)


@pytest.fixture
def written(model, tmp_path):
    """Writes a report; returns its run and its text."""

    def write(evaluation, history=HISTORY, neighbour=0.5, changes=(), facts=(), model=model):
        recipe = override(recipes.load("digits"), changes)
        run = open_run(recipe, Dataset(evaluation.class_names, {}), tmp_path, None, Engine(None))
        run.recipe.write_text(json.dumps(json.loads(run.recipe.read_text()) | dict(facts)))
        state = types.SimpleNamespace(history=history, throughput=[50.0, 1234.4, 1250.0], seconds=3725.4)
        state.throughput = state.throughput[: len(history)]
        write_report(run, recipe, state, evaluation, neighbour, model)
        return run, run.report.read_text(encoding="utf-8")

    return write


@pytest.fixture
def blank(monkeypatch):
    """Leaves figures blank, which is faster."""
    monkeypatch.setattr(parts, "plot_curve", lambda *_: Figure(figsize=(1, 1)))
    for plot in ("plot_confusion_matrix", "plot_calibration", "plot_confidence"):
        monkeypatch.setattr(report, plot, lambda *_: Figure(figsize=(1, 1)))


@pytest.fixture
def page(written, blank):
    """Writes a report with blank figures; returns its elements."""
    return lambda *arguments, **changes: Elements(written(*arguments, **changes)[1])


def evaluation_of(labels, probabilities, names=None, shape=(9, 6, 1)):
    """An evaluation with the pictures of its 15 most confident mistakes and of images 0 and 1."""
    labels, probabilities = np.asarray(labels, bool), np.asarray(probabilities, "float32")
    images = np.random.default_rng(0).integers(0, 256, (len(labels), *shape), "uint8")
    names = tuple(names or (f"class_{i}" for i in range(labels.shape[1])))
    found = Classification(labels, probabilities, names)
    order = np.argsort(-found.confidence, kind="stable")
    wrong = [i for i in order.tolist() if not found.is_right[i]][:15]
    return Classification(labels, probabilities, names, {i: images[i] for i in wrong}, {i: images[i] for i in (0, 1)})


def random_evaluation(classes=5, images=60, **options):
    rng = np.random.default_rng(0)
    labels = np.eye(classes)[rng.integers(0, classes, images)]
    return evaluation_of(labels, rng.dirichlet(np.ones(classes), images), **options)


def evaluation_with(right, total):
    """An evaluation with two classes and `right` correct images. Each prediction has a probability of 0.75."""
    labels = np.arange(total) % 2
    predictions = np.where(np.arange(total) < right, labels, 1 - labels)
    return evaluation_of(np.eye(2)[labels], 0.25 + 0.5 * np.eye(2)[predictions], ("no", "yes"))


class Elements(html.parser.HTMLParser):
    """The text of a page, and its elements as (tag, {attribute: value})."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(page)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += f" {data}"

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def pictures(self):
        """The decoded pictures outside of figures, as (alternative text, pixels)."""
        images = [image for image in self.all("img") if "width" not in image]
        return [(image["alt"], decoded(image)) for image in images]


def decoded(image):
    content = base64.b64decode(image["src"].partition(";base64,")[2])
    return np.asarray(PIL.Image.open(io.BytesIO(content)))


def test_mistakes_are_shown_as_they_are_the_most_confident_first(page):
    evaluation = random_evaluation()
    shown = page(evaluation)
    assert "The 15 most confident of 51 mistakes" in shown.text
    pictures = shown.pictures()[:15]
    for (alt, pixels), (index, image) in zip(pictures, evaluation.mistakes.items(), strict=True):
        true, predicted = evaluation.labels[index].argmax(), evaluation.probabilities[index].argmax()
        assert alt == f"class_{true} → class_{predicted}"
        assert f"{alt} {evaluation.probabilities[index].max():.1%}" in shown.text
        np.testing.assert_array_equal(pixels, image[..., 0])


def test_all_mistakes_are_called_all(page):
    shown = page(evaluation_with(right=190, total=200))
    assert "All mistakes: true → predicted class" in shown.text
    assert len([alt for alt, _ in shown.pictures() if "→" in alt]) == 10
    shown = page(evaluation_with(right=30, total=30))
    assert "No mistakes: all 30 images are classified correctly." in shown.text
    assert "100.00%" in shown.text


@pytest.mark.slow
def test_attention_lies_beside_its_image(page, model):
    evaluation = random_evaluation()
    *_, first, first_map, second, second_map = page(evaluation).pictures()
    images = np.stack([evaluation.examples[0], evaluation.examples[1]])
    maps = keras_vit.attention_rollout(model, images)
    assert maps.shape == (2, 3, 2)
    for i, (picture, attention) in enumerate(((first, first_map), (second, second_map))):
        np.testing.assert_array_equal(picture[1], images[i, ..., 0])
        np.testing.assert_array_equal(attention[1], overlay_attention(images[i], maps[i]))
        assert attention[0] == f"attention for the image beside it: {picture[0]}"


def test_what_is_shown_of_other_models(page, model, monkeypatch):
    layers = [keras.Input((9, 6, 1)), keras.layers.Flatten(), keras.layers.Dense(5)]
    axial, merging = ({"axial": True, "pooling": "avg"}, {"token_merging": 1})
    vits = [
        keras_vit.ViT(keras_vit.ViTConfig(3, 12, 1, 3, 20, **changes), input_shape=(9, 6, 1), classes=5)
        for changes in (axial, merging)
    ]
    for other, says, num_pictures in (
        (vits[0], "", 15 + 4),
        (vits[1], "merges tokens (token_merging)", 15),
        (keras.Sequential(layers), "no encoder blocks, so there is no attention to show", 15),
    ):
        shown = page(random_evaluation(), model=other)
        assert says in shown.text
        assert len(shown.pictures()) == num_pictures
    monkeypatch.setattr(report, "has_rollout", lambda model: False)
    shown = page(random_evaluation())
    assert "not defined for this model's pooling, so there is no attention to show" in shown.text
    assert len(shown.pictures()) == 15


@pytest.mark.parametrize(
    ("changes", "unit", "positions"), [((), "epoch", [1, 2, 3]), (["7 steps"], "step", [7, 14, 21])]
)
def test_curves_are_the_history(page, monkeypatch, changes, unit, positions):
    drawn = []
    monkeypatch.setattr(parts, "plot_curve", lambda *arguments: drawn.append(arguments) or Figure(figsize=(1, 1)))
    page(random_evaluation(), changes=[f"fit.report_every={text}" for text in changes])
    assert [list(found) for found, *_ in drawn] == [positions] * 4
    assert [found[2] for found in drawn] == [unit] * 4
    (_, loss, *_), (_, accuracy, *_), (_, rate, *_), (_, throughput, *_) = drawn
    assert set(loss) == set(accuracy) == {"training", "validation"}
    np.testing.assert_allclose(loss["validation"], [1.9, 1.6, 1.4])
    np.testing.assert_allclose(accuracy["training"], [30, 50, 62.5])
    np.testing.assert_allclose(rate["training"], [1e-3, 5e-4, 1e-6])
    np.testing.assert_allclose(throughput["training"], [50.0, 1234.4, 1250.0])


def test_without_validation_there_is_one_curve(page):
    history = [{name: value for name, value in row.items() if "val_" not in name} for row in HISTORY[:1]]
    shown = page(random_evaluation(), history=history)
    assert [image["alt"] for image in shown.all("img")][:2] == [
        "loss (nats) by epoch; at the end: training 2",
        "accuracy (% of the images) by epoch; at the end: training 30",
    ]
    assert "images per second in training, including compilation" in shown.text


def test_a_model_that_predicts_nothing_has_a_report(page):
    evaluation = random_evaluation()
    page(dataclasses.replace(evaluation, probabilities=evaluation.probabilities * np.nan))


def test_least_loss_is_that_of_a_model_that_predicts_the_smoothed_labels(page):
    for loss in ("softmax", "sigmoid"):
        changes = [f"fit.loss={loss}", "fit.label_smoothing=0.2"]
        smoothed = 0.8 * np.eye(5)[:1] + 0.2 / 5
        logits = np.log(smoothed) if loss == "softmax" else np.log(smoothed / (1 - smoothed))
        [least] = keras.ops.convert_to_numpy(
            build_loss(override(recipes.load("digits"), changes))(np.eye(5)[:1], logits)
        )
        text = page(random_evaluation(), changes=changes).text
        assert f"With label smoothing, the loss cannot be lower than {least:.3f} nats." in text


def test_a_cross_entropy_of_sigmoids_is_named(page):
    evaluation = random_evaluation()
    says = "nats, summed over the sigmoids of all classes, on the test images"
    assert says in page(dataclasses.replace(evaluation, has_sigmoids=True)).text
    assert says not in page(evaluation).text


def test_no_least_loss_is_claimed_where_there_is_none(page):
    for changes in ([], ["fit.label_smoothing=0.2", "distillation.teacher=teacher.keras"]):
        assert "the loss cannot be lower than" not in page(random_evaluation(), changes=changes).text


def test_the_comparison_is_honest():
    for neighbour, says in (
        (0.5, "is right for 50.00% of the same images. The model is better by 30.00 percentage points."),
        (0.9, "worse by 10.00 percentage points, so comparing pixels works better on these images."),
        (0.78, "better by 2.00 percentage points. The interval contains both accuracies, so 200 images are too few"),
        (0.82, "worse by 2.00 percentage points. The interval contains both accuracies, so 200 images are too few"),
        (0.8, "The model is equally accurate"),
    ):
        overall, comparison = judge(evaluation_with(right=160, total=200), neighbour)
        assert overall.startswith("160 of 200 held-out test images are classified correctly, which is 80.00%")
        assert says in comparison


def test_nothing_is_said_of_a_comparison_that_was_not_made(page):
    evaluation = evaluation_with(right=160, total=200)
    assert len(list(judge(evaluation, None))) == 1
    assert "neighbour" in page(evaluation, facts={"git": None}).text  # Names of changed files may contain it.
    assert "neighbour" not in page(evaluation, neighbour=None, facts={"git": None}).text


@pytest.mark.usefixtures("blank")
def test_shows_the_result_and_how_to_repeat_it(written, model):
    run, page = written(evaluation_with(right=160, total=200), neighbour=0.7125)
    text = Elements(page).text
    interval = scipy.stats.binomtest(160, 200).proportion_ci(method="wilson")
    facts = json.loads(run.recipe.read_text())
    for shown in (
        "80.00%",
        "160 of 200 images",
        f"{interval.low:.2%} to {interval.high:.2%}",
        "71.25%",
        f"{-0.8 * np.log(0.75) - 0.2 * np.log(0.25):.4f} nats",
        f"{model.count_params():,}",
        f"{keras_vit.profile(model).macs:,}",
        "1:02:05",
        "5.00% expected calibration error; the mean confidence is 75.00%",
        "1,234 images per second in training: the median of 3 intervals, 50 to 1,250",
        f"Keras backend {keras.backend.backend()} ",
        "accelerators",
        facts["command"],
        *(f"{name} {version}" for name, version in facts["versions"].items()),
    ):
        assert shown in text, shown
    for name, value in leaves(to_dict(recipes.load("digits"))):
        shown = ",".join(map(str, value)) if isinstance(value, list) else "none" if value in (None, {}) else value
        assert f"{name} {shown}" in text


def test_says_which_code_ran(page):
    for git, says in (
        (None, "git commit unknown"),
        ({"commit": "c0ffee", "changed_files": []}, "git commit c0ffee python"),
        ({"commit": "c0ffee", "changed_files": ["M a.py", "?? b.py"]}, "files changed since the commit a.py, b.py"),
    ):
        assert says in page(random_evaluation(), facts={"git": git}).text


def test_classes_stand_with_the_worst_first(page):
    labels, predictions = [0, 0, 1, 1, 1, 1, 3, 3], [0, 0, 3, 3, 0, 1, 3, 0]
    evaluation = evaluation_of(np.eye(4)[labels], np.eye(4)[predictions], ("ant", "bee", "cat", "dog"))
    rows = "bee 4 1 25.0% dog (2 times) dog 2 1 50.0% ant (once) ant 2 2 100.0% cat 0 0 no images"
    assert rows in page(evaluation).text


def test_a_long_table_of_classes_is_folded(page):
    for classes, is_open in ((20, True), (21, False)):
        [details] = page(random_evaluation(classes)).all("details")
        assert ("open" in details) == is_open


def test_images_with_several_classes_have_no_confusion_matrix(page):
    labels = [[1, 1, 0], [0, 0, 1]]
    shown = page(evaluation_of(labels, [[0.1, 0.2, 0.7], [0.2, 0.1, 0.7]], ("ant", "bee", "cat")))
    assert "Shown only for at most 1,000 classes and one label per image." in shown.text
    assert "ant or bee → cat 70.0%" in shown.text


def test_a_run_on_a_folder_is_called_by_its_name(page):
    changes = ["name=photographs", "data.dataset=folder", "data.directory=/some where/dogs & cats/"]
    shown = page(random_evaluation(), changes=changes)
    assert shown.text.count("photographs: dogs & cats") == 2  # The page's title and heading.
    assert "trained on the folder dogs & cats" in shown.text


@pytest.mark.slow
def test_page_needs_nothing_beside_it_and_its_figures_can_be_read(written):
    run, text = written(random_evaluation())
    assert {path.name for path in run.figures.iterdir()} == {f"{name}.png" for name in FIGURES}
    assert "url(" not in text
    assert "@import" not in text
    page = Elements(text)
    assert not {"script", "iframe", "object", "embed"} & {tag for tag, _ in page.elements}
    for _, attributes in page.elements:
        assert all(attributes[name].startswith("data:") for name in ("src", "href") if name in attributes)
        assert not any(name.startswith("on") for name in attributes)
    images = page.all("img")
    assert len(images) == len(FIGURES) + 15 + 2 * 2
    for image in images:
        assert image["src"].startswith("data:image/png;base64,")
        assert len(image["alt"]) > 5
        if "width" in image:  # It is a figure.
            assert 300 <= int(image["width"]) <= 900
            assert decoded(image).std() > 5, f"{image['alt']} is blank"


@pytest.mark.usefixtures("blank")
def test_names_are_escaped(written):
    names = ["<b>bold</b>", '"><script>alert(1)</script>', "a & b", "$x^$", "${name}"]
    _, page = written(
        random_evaluation(names=names), changes=["data.tfds_directory=<i>here</i>"], facts={"command": "train a>b <u>"}
    )
    parsed = Elements(page)
    assert not {"b", "i", "u", "script"} & {tag for tag, _ in parsed.elements}
    for name in [*names, "<i>here</i>", "train a>b <u>"]:
        assert name in parsed.text
