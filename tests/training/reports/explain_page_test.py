"""The page of `explain` draws in a browser what the model computes, and downloads nothing.

The tests use an installed Chromium (Debian's package chromium, for example). They do not install one.
"""

import base64
import html
import io
import json
import re
import shutil
import types

import matplotlib
import numpy as np
import PIL.Image
import pytest

import keras_vit
from keras_vit.data.decoding import image_decoder
from tests.training.inspection.explain_test import leave_figures_blank, tiny, write_pictures
from training.inspection.explain import explain
from training.reports import explain_page
from training.reports.explain_page import query_patches

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
HOSTILE = '"><img src=x onerror=alert(1)>.png'
COLORS = np.rint(255 * matplotlib.colormaps["inferno"](np.arange(256))[:, :3]).astype(int)
PHONE, DESKTOP = {"width": 360, "height": 740}, {"width": 1280, "height": 900}


@pytest.fixture(autouse=True)
def blank(monkeypatch):
    leave_figures_blank(monkeypatch)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The page of a model with 2 x 3 patches after a class token and two registers, the model, and the pictures."""
    folder = tmp_path_factory.mktemp("explained")
    model = tiny(num_register_tokens=2)
    model.save(folder / "model.keras")
    paths = write_pictures(folder, 2)
    paths.append(paths[0].rename(folder / HOSTILE))
    page, _ = explain(folder / "model.keras", paths[1:], folder / "to")
    decode = image_decoder(model)
    pixels = np.stack([decode(path.read_bytes()) for path in paths[1:]])
    return page, model, keras_vit.preprocess_input(pixels, model)


@pytest.fixture
def opened(browser):
    """Opens a page. Any error on the page, and any request that it makes, fails the test."""
    contexts = []

    def open_page(path, viewport=DESKTOP, scheme="light"):
        context = browser.new_context(viewport=viewport, color_scheme=scheme)
        page = context.new_page()
        problems = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on("request", lambda request: problems.append(request.url) if request.url != path.as_uri() else None)
        contexts.append((context, problems))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context, problems in contexts:
        context.close()
        assert not [problem for problem in problems if not problem.startswith("data:")]  # They are in the page.


def _drawn(page, canvas):
    """The index (h, w) of each patch's color among the 256 colors."""
    picture = page.evaluate("name => document.getElementById(name).toDataURL('image/png')", canvas)
    pixels = np.asarray(PIL.Image.open(io.BytesIO(base64.b64decode(picture.partition(",")[2])))).astype(int)
    assert (pixels[..., 3] == 255).all()
    distance = np.abs(pixels[..., None, :3] - COLORS).sum(-1)
    assert (distance.min(-1) == 0).all()
    return distance.argmin(-1)


def _scaled(weights):
    """The expected drawing (2, 3) of a row of attention weights."""
    patches = weights[..., -6:].reshape(2, 3)
    return np.rint(255 * patches / patches.max())


def _slide(page, name, position):
    """Moves a slider to a position by keyboard."""
    page.focus(f"#{name}")
    page.keyboard.press("Home")
    for _ in range(position):
        page.keyboard.press("ArrowRight")


def test_dots_are_as_high_as_their_values():
    chart = explain_page._chart(np.array([[1.0, 3.0], [2.0, np.nan]]), "distance", 0)
    [zero, *_], dots = (re.findall(pattern, chart) for pattern in (r'y1="([\d.]+)"', r'cy="([\d.]+)"'))
    heights = float(zero) - np.array(dots, float)
    np.testing.assert_allclose(heights, heights[0] * np.array([1, 3, 2]), atol=0.2)


@pytest.mark.slow
def test_a_head_is_drawn_as_the_model_attends(opened, written):
    path, model, images = written
    page, (layer, head, query) = opened(path), (2, 1, 8)
    assert page.locator("circle").count() == 2 * 2 * 3
    assert page.locator("circle.current").count() == 2 * 3
    for name, position in (("layer", layer - 1), ("head", head), ("query", query)):
        _slide(page, name, position)
    for picture in (0, 1):
        page.click(f"[data-picture='{picture}']")
        weights = keras_vit.attention_maps(model, images)[picture, layer - 1, head - 1, query]
        np.testing.assert_array_equal(_drawn(page, "attention-map"), _scaled(weights))
        assert page.inner_text("#layer-value") == f"{layer} of 2"
        assert page.inner_text("#head-value") == f"{head} of 3"
        patch = _scaled(weights).argmax()  # The first of the patches that are drawn alike.
        said = page.inner_text("#said")
        assert f"most to the patch in row {patch // 3 + 1}, column {patch % 3 + 1}" in said
        assert f"{100 * weights[-6:].max():.0f} %" in said or f"{100 * weights[-6:].max():.1f} %" in said
        elsewhere = 100 * weights[:3].sum()
        assert f"{elsewhere:.0f} % goes" in said or f"{elsewhere:.1f} % goes" in said
    # The dots of the chosen heads are colored.
    values = [float(dot.get_attribute("data-value")) for dot in page.locator("circle.current").all()]
    expected = [f(model, images)[1, 0] for f in (keras_vit.mean_attention_distance, keras_vit.attention_entropy)]
    np.testing.assert_allclose(values, expected, rtol=1e-3)


@pytest.mark.slow
def test_the_mean_of_the_heads_the_rollout_and_a_click(opened, written):
    path, model, images = written
    page = opened(path, PHONE)
    mean = keras_vit.attention_maps(model, images)[0, -1, :, 0].mean(0)
    np.testing.assert_allclose(_drawn(page, "attention-map"), _scaled(mean), atol=1)  # Rounded to 255 steps.
    assert page.inner_text("#head-value") == "mean of all 3"
    assert page.inner_text("#query-value") == "class token"
    rollout = keras_vit.attention_rollout(model, images)[0]
    np.testing.assert_array_equal(_drawn(page, "rollout-map"), np.rint(255 * rollout))
    box = page.locator("#attention-stage").bounding_box()
    # The click is on the patch in the second row and third column.
    page.click("#attention-stage", position={"x": 0.8 * box["width"], "y": 0.7 * box["height"]})
    assert page.inner_text("#query-value") == "patch in row 2, column 3"
    assert page.input_value("#query") == "8"
    mean = keras_vit.attention_maps(model, images)[0, -1, :, 8].mean(0)
    np.testing.assert_allclose(_drawn(page, "attention-map"), _scaled(mean), atol=1)
    mark = page.locator("#mark").bounding_box()
    assert mark["x"] + mark["width"] / 2 == pytest.approx(box["x"] + 5 / 6 * box["width"], abs=2)
    assert mark["y"] + mark["height"] / 2 == pytest.approx(box["y"] + 3 / 4 * box["height"], abs=2)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fits_a_phone_and_the_night(opened, written, scheme):
    page = opened(written[0], PHONE, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    red, green, blue = map(
        int, page.evaluate("getComputedStyle(document.body).backgroundColor").strip("rgb()").split(",")
    )
    assert (red + green + blue > 600) == (scheme == "light")
    assert page.inner_text("#picture-name") in ("picture 1.png", HOSTILE)
    for control in page.locator("input, button").all():
        assert control.bounding_box()["height"] >= 24, "too small for a finger"


def test_patches_that_can_be_asked_are_spread():
    for grid, most, patches in (
        ((2, 3), 6, [0, 1, 2, 3, 4, 5]),
        ((2, 3), 5, [0, 2]),
        ((4, 4), 4, [0, 2, 8, 10]),
        ((5, 5), 1, [12]),
        ((1, 9), 3, [1, 4, 7]),
        ((3, 3), -2, [4]),
    ):
        assert query_patches(grid, most) == patches


def test_a_large_model_is_cut_to_its_size_and_only_its_own_script_may_run(tmp_path, monkeypatch):
    """The limit fits two of three pictures with two rows each, for the class token and one patch."""
    monkeypatch.setattr(explain_page, "MOST_PICTURES", 2)
    monkeypatch.setattr(explain_page, "MOST_BYTES", 2 * 2 * (2 * 3 * 6))
    tiny().save(tmp_path / "model.keras")
    first, *others = write_pictures(tmp_path)
    path, _ = explain(tmp_path / "model.keras", [first.rename(tmp_path / HOSTILE), *others], tmp_path / "to")
    text = path.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert "script-src 'sha256-" in text
    assert HOSTILE not in text
    assert f'alt="{html.escape(HOSTILE)}"' in text
    assert "Only the first 2 of 3 pictures are shown" in text
    assert "Only 1 of 6 patches can be selected" in text
    data = json.loads(text.split("id=data>")[1].split("</script>")[0])
    assert [query.get("name", query.get("patch")) for query in data["queries"]] == ["class token", 4]
    for picture in data["pictures"]:
        attention = np.frombuffer(base64.b64decode(picture["attention"]), "uint8").reshape(2, 3, 2, 6)
        assert (attention.max(-1) == 255).all()
    assert "mean attention distance (pixels)" in text
    assert "attention entropy (nats; 1.95 if uniform)" in text


def test_without_distances_or_rollouts_no_attention_is_shown():
    distances, rollouts = {"model": np.ones((2, 3))}, np.ones((3, 2, 3))
    for known in ({"distances": {}, "rollouts": rollouts}, {"distances": distances, "rollouts": None}):
        subject, findings = types.SimpleNamespace(name="model"), types.SimpleNamespace(**known)
        assert explain_page._attention(subject, None, findings) is None
