"""The pages in docs/models/ are complete, and their examples and drawings agree with the package."""

import pathlib
import re
import sys

import keras
import numpy as np
import pytest

import keras_vit
from benchmarks import model_weights, models
from keras_vit.architectures.dense import NormalEstimatorConfig
from keras_vit.licences import restriction
from keras_vit.models import dense
from keras_vit.models.building import SharedArguments
from keras_vit.weights.catalogue import ENTRIES, get_entry
from tests.documented_code import check_names

FOLDER = pathlib.Path(__file__).parents[1] / "docs" / "models"
PAGES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.md")) if path.stem != "index"}
EXAMPLES = [
    (page, code) for page, text in PAGES.items() for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
]


def _weights(text):
    """The catalogue entries that a page lists."""
    found = re.findall(r"^```{model-weights} (.*)\n(?::(\w+):)?", text, re.MULTILINE)
    return [entry for papers, kind in found for entry in model_weights.entries_of(papers.split(), kind)]


def test_each_weight_and_each_table_is_on_one_page():
    listed = [entry.name for text in PAGES.values() for entry in _weights(text)]
    assert sorted(listed) == sorted(ENTRIES)
    tables = [
        table for text in PAGES.values() for table in re.findall(r"^```{model-variants} (\w+)$", text, re.MULTILINE)
    ]
    assert sorted(tables) == sorted(models.TABLES)


def _parts(page, text):
    introduction, _, _ = text.partition("\n## ")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    yield "headings", headings == ["Variants", "Weights", "Licence", "Example", "Citation", "See also"]
    yield "what differs", "What differs" in introduction or page in ("vit", "resnet")
    yield "diagram", "```{model-diagram} " in introduction
    yield "citation", "```bibtex\n@" in text
    links = re.findall(r"\[arXiv\s(\S+?)\]\((\S+?)\)", text)
    yield "links to papers", all(target == f"https://arxiv.org/abs/{shown}" for shown, target in links)
    papers = {entry.paper for entry in _weights(text)} - {None}
    yield "papers of the weights", all(f"https://arxiv.org/abs/{paper}" in text for paper in papers)
    yield "the page in the index", f"]({page}.md)" in (FOLDER / "index.md").read_text()


def _licences(page, text):
    licences = {entry.licence for entry in _weights(text)}
    note = text.partition("\n## Licence\n")[2].partition("\n## ")[0]
    yield "licences", all(licence in note for licence in licences)
    forbid_commercial_use = any("Commercial use is not permitted" in restriction(licence) for licence in licences)
    yield "commercial use forbidden", ("not use them commercially" in note) == forbid_commercial_use
    yield "commercial use permitted", ("Commercial use is permitted" in note) == (licences == {"Apache-2.0"})


def test_pages_are_complete():
    assert PAGES
    checks = [
        (page, part, holds)
        for page, text in PAGES.items()
        for part, holds in (*_parts(page, text), *_licences(page, text))
    ]
    assert not [f"{page}: {part}" for page, part, holds in checks if not holds]


def test_names_of_weights_exist():
    texts = {**PAGES, "choosing_a_model": (FOLDER.parent / "choosing_a_model.md").read_text()}
    names = {(page, name) for page, text in texts.items() for name in re.findall(r"[`\"]([\w+-]+/\d+@[^`\"]+)", text)}
    assert len(names) > 50
    assert not [name for name in names if name[1] not in ENTRIES]


def test_names_and_arguments_of_examples():
    for page, code in EXAMPLES:
        check_names(code)
        assert len(code.splitlines()) <= 12, page
        assert max(map(len, code.splitlines())) <= 90, page  # The width of the site's column.
        names = re.findall(r'"([^"]+@[^"]+)"', code)
        assert set(names) <= {entry.name for entry in _weights(PAGES[page])}, page


def _with_random_weights(build):
    """A function that builds the same model, but with random weights in place of the published ones."""

    def build_random(*arguments, weights=None, **options):
        return build(*arguments, **options)

    return build_random


def _from_pretrained(name, input_shape=None, classes=None, include_preprocessing=False, **changes):
    entry = get_entry(name)
    shape = input_shape or (entry.image_size, entry.image_size, 3)
    options = {"input_shape": shape, "include_preprocessing": include_preprocessing}
    if entry.output is not None:
        return _small_model(entry, options)
    config = keras_vit.describe(models.build_entry(entry)).config.replace(**changes)
    classes = entry.classes if classes is None else classes
    return keras_vit.ViT(config, include_top=bool(classes), classes=classes or 1000, **options)


def _small_model(entry, options):
    """A model of few layers with the outputs of an entry."""
    encoder = keras_vit.VARIANTS["Ti/16"].replace(num_layers=4, patch_size=entry.config.patch_size)
    if entry.output in ("masks", "class_map"):
        head = keras_vit.heads.EoMTHead(200) if entry.output == "masks" else "linear"
        return keras_vit.Segmenter(encoder, head, classes=entry.classes, **options)
    config = NormalEstimatorConfig.of_encoder(encoder, head={"name": "linear"})
    if entry.output == "normals":
        return dense.build_model(config, SharedArguments(**options))
    return keras_vit.DepthEstimator(encoder, keras_vit.heads.DPTHead(features=8), **options)


def _evaluate(model, images, epochs):
    """In place of `fit`, for speed: the loss of one batch."""
    model.run_eagerly = True
    model.evaluate(images, verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "code"), EXAMPLES)
def test_examples_run(page, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(keras.Model, "fit", _evaluate)
    monkeypatch.setattr(keras_vit, "from_pretrained", _from_pretrained)
    for name in ("ViTB16", "BiTResNet50x1", "ResNet50", "VTResNet18"):
        monkeypatch.setattr(keras_vit, name, _with_random_weights(getattr(keras_vit, name)))
    rng = np.random.default_rng(0)
    keras.utils.save_img("photograph.jpg", rng.integers(0, 256, (60, 80, 3)))

    def data(height, width, labels):
        import tensorflow as tf

        return tf.data.Dataset.from_tensors((rng.integers(0, 256, (2, height, width, 3)).astype("float32"), labels))

    images = rng.integers(0, 256, (2, 224, 224, 3)).astype("float32")
    given = {"photographs": data(224, 224, np.array([3, 7])), "small_photographs": data(64, 96, np.array([3, 7]))}
    given |= {"images_and_masks": data(192, 256, rng.integers(0, 5, (2, 192, 256))), "images": images}
    given |= {"unlabelled": images}
    exec(compile(code, f"{page}.md", "exec"), given)


@pytest.fixture
def rows(monkeypatch):
    """The module that computes the rows of the drawings."""
    monkeypatch.syspath_prepend(str(FOLDER.parent / "_extensions"))
    import model_rows

    yield model_rows
    for name in ("model_rows", "model_svg"):
        sys.modules.pop(name)


def test_rows_of_a_model(rows):
    found = {row.name: row for row in rows.model_rows(rows.build("ViTTi16"))}
    assert list(found) == [
        *("images", "patch_embedding", "class_token", "position_embedding"),
        *("encoder_block", "encoder_norm", "pooling", "predictions"),
    ]
    assert [found[name].shape for name in ("images", "patch_embedding")] == [(224, 224, 3), (14, 14, 192)]
    assert [found[name].shape for name in ("encoder_block", "pooling")] == [(197, 192), (192,)]
    assert found["encoder_block"].title.startswith("12 ")
    assert found["encoder_block"].detail == "encoder_block_0 … 11"
    assert (found["patch_embedding"].num_prefix, found["class_token"].num_prefix) == (0, 1)


def test_rows_side_by_side(rows):
    """Layers for the four maps share a row, which has the shape of the finest map, and follow the rows they need."""
    found = {row.name: row for row in rows.model_rows(rows.build("VTFPN"), is_parallel=True)}
    names = list(found)
    needed = ["stage_3", "lateral", "tokenizer", "token_embedding", "tokens", "token_transformer", "token_projector"]
    assert [name for name in names if name in needed] == needed
    assert (found["lateral"].shape, found["lateral"].detail) == ((56, 56, 256), "lateral_0 … 3")


def test_parts_of_a_layer(rows):
    parts, branches = rows.inner_rows(rows.build("ViTTi16").get_layer("encoder_block_0"))
    assert [part.name for part in parts] == ["attention_norm", "attention", "mlp_norm", "mlp"]
    assert {part.shape for part in parts} == {(197, 192)}
    assert branches == [(0, 1), (2, 3)]


@pytest.fixture(scope="module")
def rotary_model():
    config = keras_vit.ViTConfig(16, hidden_dim=24, num_layers=2, num_heads=2, mlp_dim=36)
    changes = {"rotary": keras_vit.RotaryConfig(), "position_embedding": "none", "pre_norm": True}
    changes["num_register_tokens"] = 3
    return keras_vit.ViT(config.replace(**changes), include_top=False, input_shape=(32, 48, 3))


def test_rotary_positions_are_a_side_input(rows, rotary_model):
    """Their row comes after that of the tokens. The blocks get both."""
    found = rows.model_rows(rotary_model)
    assert [row.name for row in found][3:7] == ["class_token", "pre_norm", "rotary_positions", "encoder_block"]
    assert [row.name for row in found if row.is_side_input] == ["rotary_positions"]
    assert found[5].shape == (2, 10, 12)


def test_parts_of_a_layer_with_rotary_positions(rows, rotary_model):
    parts, _ = rows.inner_rows(rotary_model.get_layer("encoder_block_1"))
    assert [part.title for part in parts][:2] == ["LayerNorm", "Attention, 2 heads, rotary"]
    assert {part.shape for part in parts} == {(10, 24)}


def test_unknown_model(rows):
    with pytest.raises(ValueError, match="'ViTB15' is neither a function"):
        rows.build("ViTB15")


def test_side_inputs_have_a_line_past_them(rows):
    import model_svg

    tokens = model_svg.Row("class_token", "Class token", "class_token", (10, 24))
    side = model_svg.Row("rotary_positions", "Rotary positions", "rotary_positions", (2, 10, 12), is_side_input=True)
    lines = [model_svg.model_panel("ViT", panel).count('class="line" d="M24 ') for panel in ([tokens], [tokens, side])]
    assert lines == [0, 1]


def test_drawings_have_a_description(rows):
    import model_svg

    row = model_svg.Row("pooling", "Pooling & norm", "pooling", (768,), is_highlighted=True)
    drawing = model_svg.model_panel("ViTB16", [row])
    assert 'aria-label="Diagram of ViTB16: Pooling &amp; norm (768)."' in drawing
    assert 'class="box special"' in drawing
