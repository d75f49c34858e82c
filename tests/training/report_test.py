"""What the report of a run shows, and that it needs nothing but itself."""

import html.parser
import json
import types

import keras
import numpy as np
import PIL.Image
import pytest
from matplotlib.figure import Figure

import keras_vit
from training import recipes
from training.assignments import leaves, override
from training.config import to_dict
from training.evaluate import Evaluation
from training.report import (
    confident_mistakes,
    judge,
    plot_confusion_matrix,
    plot_curves,
    plot_mistakes,
    wilson_interval,
    write_report,
)
from training.runs import add_result, new_run

HISTORY = {
    "loss": [2.0, 1.5, 1.1],
    "accuracy": [0.3, 0.5, 0.625],
    "val_loss": [1.9, 1.6, 1.4],
    "val_accuracy": [0.25, 0.45, 0.5],
}


@pytest.fixture(scope="module")
def model():
    config = keras_vit.ViTConfig(patch_size=3, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20)
    return keras_vit.ViT(config, input_shape=(9, 6, 1), classes=5)


@pytest.fixture
def report(model, tmp_path):
    """Writes a report; returns its run and its text."""

    def write(evaluation, history=HISTORY, neighbour=0.5, changes=(), facts=()):
        recipe = override(recipes.load("digits"), changes)
        run = new_run(recipe, evaluation.class_names, tmp_path)
        add_result(run, seconds_of_training=3725.4)
        run.recipe.write_text(json.dumps(json.loads(run.recipe.read_text()) | dict(facts)))
        write_report(run, recipe, types.SimpleNamespace(history=history), evaluation, neighbour, model)
        return run, run.report.read_text(encoding="utf-8")

    return write


@pytest.fixture
def page(report, monkeypatch):
    """Writes a report whose figures are blank, which is faster; returns its text."""
    for plot in ("plot_curves", "plot_confusion_matrix", "plot_mistakes"):
        monkeypatch.setattr(f"training.report.{plot}", lambda *_: Figure(figsize=(1, 1)))
    return lambda *arguments, **changes: Elements(report(*arguments, **changes)[1])


def random_evaluation(classes=5, images=60, shape=(9, 6, 1), names=None):
    rng = np.random.default_rng(0)
    return Evaluation(
        images=rng.uniform(0, 255, (images, *shape)).astype("float32"),
        labels=rng.integers(0, classes, images),
        probabilities=rng.dirichlet(np.ones(classes), images).astype("float32"),
        class_names=tuple(names or (f"class_{i}" for i in range(classes))),
    )


def evaluation_with(right, total):
    """One with two classes, in which so many images are right, each with a probability of 0.75."""
    labels = np.arange(total) % 2
    predictions = np.where(np.arange(total) < right, labels, 1 - labels)
    return Evaluation(np.zeros((total, 9, 6, 1)), labels, 0.25 + 0.5 * np.eye(2)[predictions], ("no", "yes"))


class Elements(html.parser.HTMLParser):
    """The elements of a page as (tag, {attribute: value}), and its text."""

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


@pytest.mark.parametrize(("classes", "shape"), [(10, (70, 90, 3)), (250, (9, 6, 1))])
def test_figures_can_be_read(report, classes, shape):
    run, _ = report(random_evaluation(classes, shape=shape))
    assert {path.name for path in run.figures.iterdir()} == {"curves.png", "confusion_matrix.png", "mistakes.png"}
    for path in run.figures.iterdir():
        with PIL.Image.open(path) as image:
            assert image.format == "PNG"
            assert image.width >= 800, path
            assert image.height >= 400, path
            assert np.asarray(image.convert("L")).std() > 5, f"{path} is blank"


def test_mistakes_are_the_most_confident_first():
    evaluation = random_evaluation()
    wrong = [i for i in range(60) if np.argmax(evaluation.probabilities[i]) != evaluation.labels[i]]
    expected = sorted(wrong, key=lambda i: -np.max(evaluation.probabilities[i]))
    assert len(expected) > 20
    np.testing.assert_array_equal(confident_mistakes(evaluation, 7), expected[:7])
    np.testing.assert_array_equal(confident_mistakes(evaluation, 1000), expected)


def test_mistakes_are_drawn_as_they_are():
    evaluation = random_evaluation()
    figure = plot_mistakes(evaluation, limit=7)
    indices = confident_mistakes(evaluation, 7)
    drawn = [axes for axes in figure.axes if axes.images]
    assert len(drawn) == 7
    for axes, index in zip(drawn, indices, strict=True):
        true, predicted = evaluation.labels[index], evaluation.predictions[index]
        probability = evaluation.probabilities[index, predicted]
        assert axes.get_title() == f"class_{true} → class_{predicted}\n{probability:.1%}"
        [image] = axes.images
        assert (image.get_cmap().name, image.get_clim(), image.get_interpolation()) == ("gray", (0, 255), "nearest")
        np.testing.assert_array_equal(image.get_array(), np.rint(evaluation.images[index, :, :, 0]))


def test_mistakes_of_large_colour_images_are_smooth():
    evaluation = random_evaluation(images=20, shape=(60, 90, 3))
    [image] = plot_mistakes(evaluation, limit=1).axes[0].images
    assert image.get_interpolation() == "antialiased"
    [index] = confident_mistakes(evaluation, 1)
    np.testing.assert_array_equal(image.get_array(), np.rint(evaluation.images[index]))


def test_without_mistakes_the_picture_says_so(report):
    evaluation = evaluation_with(right=30, total=30)
    [text] = plot_mistakes(evaluation).texts
    assert text.get_text() == "No mistakes: all 30 images are right"
    run, page = report(evaluation)
    assert (run.figures / "mistakes.png").is_file()
    assert "100.00%" in page


def test_curves_are_the_history():
    loss, accuracy = plot_curves(HISTORY).axes
    for axes, name, scale in ((loss, "loss", 1), (accuracy, "accuracy", 100)):
        training, validation = axes.lines
        assert (training.get_label(), validation.get_label()) == ("training", "validation")
        np.testing.assert_array_equal(training.get_xdata(), [1, 2, 3])
        np.testing.assert_allclose(training.get_ydata(), scale * np.array(HISTORY[name]))
        np.testing.assert_allclose(validation.get_ydata(), scale * np.array(HISTORY[f"val_{name}"]))


def test_without_validation_there_is_one_curve(report):
    history = {name: HISTORY[name] for name in ("loss", "accuracy")}
    for axes in plot_curves(history).axes:
        assert [line.get_label() for line in axes.lines] == ["training"]
    _, page = report(random_evaluation(), history=history)
    assert "accuracy 62.5%" in Elements(page).all("img")[0]["alt"]


def test_a_run_that_diverged_has_a_report(report):
    history = {"loss": [2.0, np.nan], "accuracy": [0.3, 0.1]}
    evaluation = random_evaluation()
    report(Evaluation(**vars(evaluation) | {"probabilities": evaluation.probabilities * np.nan}), history=history)


def test_least_loss_is_what_keras_gives_for_a_perfect_model(page):
    smoothed = 0.8 * np.eye(5)[:1] + 0.2 / 5
    least = keras.losses.CategoricalCrossentropy(label_smoothing=0.2)(np.eye(5)[:1], smoothed)
    says = f"Label smoothing keeps this loss above {float(least):.3f} nats."
    assert says in page(random_evaluation(), changes=["fit.label_smoothing=0.2"]).text
    assert "smoothing keeps" not in page(random_evaluation(), changes=["fit.label_smoothing=0"]).text
    [*_, drawn] = plot_curves(HISTORY, least_loss=0.4).axes[0].lines
    assert (drawn.get_label(), *drawn.get_ydata()) == ("least possible", 0.4, 0.4)


def test_confusion_matrix_is_annotated_if_there_are_few_classes():
    evaluation = random_evaluation(images=300)
    axes = plot_confusion_matrix(evaluation).axes[0]
    counts = evaluation.confusion
    shown = {text.get_position(): int(text.get_text()) for text in axes.texts}
    assert shown == {(column, row): counts[row, column] for row, column in np.argwhere(counts)}
    np.testing.assert_allclose(axes.images[0].get_array(), counts / counts.sum(axis=1, keepdims=True))
    assert [label.get_text() for label in axes.get_yticklabels()] == list(evaluation.class_names)
    assert not plot_confusion_matrix(random_evaluation(classes=100)).axes[0].texts


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    # Newcombe, "Two-sided confidence intervals for the single proportion", 1998, Table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_interval_is_wilsons(right, total, low, high):
    assert wilson_interval(right, total) == pytest.approx((low, high), abs=5e-5)
    assert wilson_interval(total - right, total) == pytest.approx((1 - high, 1 - low), abs=5e-5)


@pytest.mark.parametrize(
    ("neighbour", "says"),
    [
        (0.5, "is right for 50.00% of the same images. The model is better by 30.00 percentage points."),
        (0.9, "The model is worse by 10.00 percentage points: here, comparing pixels works better."),
        (0.78, "better by 2.00 percentage points, which is within the interval: 200 images are too few"),
        (0.82, "worse by 2.00 percentage points, which is within the interval: 200 images are too few"),
        (0.8, "The model is right equally often"),
    ],
)
def test_the_comparison_is_honest(neighbour, says):
    overall, comparison = judge(evaluation_with(right=160, total=200), neighbour)
    assert overall.startswith("160 of 200 held-out test images are classified right, which is 80.00%")
    assert says in comparison


def test_nothing_is_said_of_a_comparison_that_was_not_made(page):
    evaluation = evaluation_with(right=160, total=200)
    assert len(list(judge(evaluation, None))) == 1
    assert "neighbour" in page(evaluation).text
    assert "neighbour" not in page(evaluation, neighbour=None).text


def test_shows_the_result_and_how_to_repeat_it(report, model):
    run, page = report(evaluation_with(right=160, total=200), neighbour=0.7125)
    text = Elements(page).text
    low, high = wilson_interval(160, 200)
    facts = json.loads(run.recipe.read_text())
    for shown in (
        "80.00%",
        "160 of 200 images",
        f"{low:.2%} to {high:.2%}",
        "71.25%",
        f"{-0.8 * np.log(0.75) - 0.2 * np.log(0.25):.4f} nats",
        f"{model.count_params():,}",
        f"{keras_vit.profile(model).macs:,}",
        "1:02:05",
        facts["command"],
        *(f"{name} {version}" for name, version in facts["versions"].items()),
    ):
        assert shown in text, shown
    for name, value in leaves(to_dict(recipes.load("digits"))):
        shown = ",".join(map(str, value)) if isinstance(value, list) else "none" if value is None else value
        assert f"{name} {shown}" in text


@pytest.mark.parametrize(
    ("git", "says"),
    [
        (None, "git commit not known"),
        ({"commit": "c0ffee", "changed_files": []}, "git commit c0ffee python"),
        ({"commit": "c0ffee", "changed_files": ["M a.py", "?? b.py"]}, "files not as in the commit a.py, b.py"),
    ],
)
def test_says_which_code_ran(page, git, says):
    assert says in page(random_evaluation(), facts={"git": git}).text


def test_classes_stand_with_the_worst_first(page):
    labels = np.array([0, 0, 1, 1, 1, 1, 3, 3])
    predictions = np.array([0, 0, 3, 3, 0, 1, 3, 0])
    evaluation = Evaluation(np.zeros((8, 9, 6, 1)), labels, np.eye(4)[predictions], ("ant", "bee", "cat", "dog"))
    rows = "bee 4 1 25.0% dog (2 times) dog 2 1 50.0% ant (once) ant 2 2 100.0% cat 0 0 no images"
    assert rows in page(evaluation).text


@pytest.mark.parametrize(("classes", "is_open"), [(20, True), (21, False)])
def test_a_long_table_of_classes_is_folded(page, classes, is_open):
    [details] = page(random_evaluation(classes)).all("details")
    assert ("open" in details) == is_open


def test_page_needs_nothing_beside_it(report):
    _, text = report(random_evaluation())
    assert "url(" not in text
    assert "@import" not in text
    page = Elements(text)
    assert not {"script", "iframe", "object", "embed"} & {tag for tag, _ in page.elements}
    for _, attributes in page.elements:
        assert all(attributes[name].startswith("data:") for name in ("src", "href") if name in attributes)
        assert not any(name.startswith("on") for name in attributes)
    images = page.all("img")
    assert len(images) == 3
    for image in images:
        assert image["src"].startswith("data:image/png;base64,")
        assert len(image["alt"]) > 20
        assert 500 <= int(image["width"]) <= 1000


def test_names_are_escaped(report):
    names = ["<b>bold</b>", '"><script>alert(1)</script>', "a & b", "$x^$", "${name}"]
    _, page = report(
        random_evaluation(names=names), changes=["data.tfds_directory=<i>here</i>"], facts={"command": "train a>b <u>"}
    )
    parsed = Elements(page)
    assert not {"b", "i", "u", "script"} & {tag for tag, _ in parsed.elements}
    for name in [*names, "<i>here</i>", "train a>b <u>"]:
        assert name in parsed.text
