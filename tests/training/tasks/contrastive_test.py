"""The task of images and texts: data, loss, metric and evaluation equal NumPy's, and runs from data to a report."""

import io
import json
import tarfile

import keras
import numpy as np
import PIL.Image
import pytest

import keras_vit
from keras_vit.data.decoding import image_decoder
from keras_vit.text.tokenizers import Tokenizer
from tests.test_case import assert_close, randomize, to_numpy
from tests.text.models import GOLDEN, random_model
from training import recipes
from training.data.loading import load_dataset
from training.data.sets import drawn_pairs
from training.engine import train
from training.engine.models import build_model
from training.errors import InputError
from training.evaluation import retrieval
from training.inspection.evaluate import evaluate_source
from training.inspection.export import export
from training.inspection.predict import predict
from training.recipe.assignments import override
from training.recipe.config import Data
from training.reports.text import retrieval_text
from training.tasks.contrastive import ContrastiveObjective, RecallInBatch, Task

NUM_IMAGES = 12


def _texts(number):
    """One or two texts of an image."""
    text = drawn_pairs.draw("train", number)[1]
    return [text, f"{text}, again"] if number % 3 == 0 else [text]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A folder with the same images and texts in four formats."""
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "train2017").mkdir()
    for number in range(NUM_IMAGES):
        PIL.Image.fromarray(drawn_pairs.draw("train", number)[0]).save(folder / "train2017" / f"{number}.png")
    rows = [(f"train2017/{number}.png", text) for number in range(NUM_IMAGES) for text in _texts(number)]
    lines = ["path,text", *(f'{path},"{text}"' for path, text in rows)]
    (folder / "pairs.csv").write_text("\n".join(lines))
    (folder / "pairs.jsonl").write_text("".join(json.dumps({"path": p, "text": text}) + "\n" for p, text in rows))
    images = [{"id": number, "file_name": f"{number}.png"} for number in range(NUM_IMAGES)]
    captions = [{"image_id": int(path[10:-4]), "caption": text} for path, text in rows]
    (folder / "captions_train2017.json").write_text(json.dumps({"images": images, "annotations": captions}))
    with tarfile.open(folder / "pairs.tar", "w") as archive:
        for number in range(NUM_IMAGES):
            content = (folder / "train2017" / f"{number}.png").read_bytes()
            for suffix, part in ((".png", content), (".json", json.dumps({"text": _texts(number)}).encode())):
                member = tarfile.TarInfo(f"{number}{suffix}")
                member.size = len(part)
                archive.addfile(member, io.BytesIO(part))
    return folder


@pytest.mark.parametrize(
    ("dataset", "directory"),
    [("table", "pairs.csv"), ("table", "pairs.jsonl"), ("coco", ""), ("archives", "pairs.tar")],
)
def test_each_text_of_an_image_is_an_example(pairs, dataset, directory):
    options = {"annotations": "captions_*.json"} if dataset == "coco" else {}
    dataset = load_dataset(Data(dataset=dataset, directory=str(pairs / directory), **options), "text")
    found = {}
    for split, source in dataset.splits.items():
        for example in source.in_order().as_numpy_iterator():
            found.setdefault(example["image"], (split, []))[1].append(example["text"].decode())
    for number in range(NUM_IMAGES):  # An image has one text in validation.
        split, texts = found.pop((pairs / "train2017" / f"{number}.png").read_bytes())
        assert texts == (_texts(number)[:1] if split == "validation" else _texts(number))
    assert not found
    train = [example["text"].decode() for example in dataset.splits["train"].in_order().as_numpy_iterator()]
    assert dataset.list_texts() == train
    assert sum(map(len, dataset.contents.items.values())) == NUM_IMAGES


def test_bad_pairs_are_refused(pairs, tmp_path):
    file = tmp_path / "pairs.csv"
    for rows, message in (
        (["a.jpg, "], r"row 1 \(a.jpg\): the image has no text"),
        (["a.jpg,b,c"], "has 3 cells, but there are 2 columns"),
    ):
        file.write_text("\n".join(["path,text", *rows]))
        with pytest.raises(InputError, match=message):
            load_dataset(Data(dataset="table", directory=str(file)), "text")
    (tmp_path / "captions_a.json").write_text('{"images": [], "annotations": [{"image_id": 1, "caption": "x"}]}')
    with pytest.raises(InputError, match=r"KeyError: 1\. For texts, set data\.annotations=annotations/captions"):
        load_dataset(Data(dataset="coco", directory=str(tmp_path), annotations="captions_*.json"), "text")
    (tmp_path / "pairs.jsonl").write_text('{"path": "a.jpg"}\n[1]\n')
    with pytest.raises(InputError, match=r"row 2: an object is needed\. Received: \[1\]"):
        load_dataset(Data(dataset="table", directory=str(tmp_path / "pairs.jsonl")), "text")


def test_a_vocabulary_of_words():
    tokenizer = Tokenizer.from_texts(["A red disc.", "a BLUE disc", "a cat"], 6, most_words=3)
    ids = tokenizer(["a disc", "A  disc blue unicorn", "a a a a a a a", ""])
    assert ids.tolist() == [[3, 4, 1, 0, 0, 0], [3, 4, 2, 2, 1, 0], [3, 3, 3, 3, 3, 1], [1, 0, 0, 0, 0, 0]]
    assert tokenizer.vocabulary_size == 6  # Padding, end, unknown, "a", "disc", and "." before "blue".
    for texts in ("a cat", [], ["a", 3]):
        with pytest.raises(TypeError, match="list of at least one string"):
            Tokenizer.from_texts(texts, 6)


def test_loss_and_metric_of_a_batch():
    rng = np.random.default_rng(0)
    image, text = rng.normal(size=(2, 7, 5)).astype("float32")
    text[:3], text[5] = 3 * image[:3], 5 * image[1]  # The last two pairs are padding.
    logits = image @ text.T

    def cross_entropy(rows):
        return np.log(np.exp(rows).sum(axis=1)) - np.diag(rows)

    weights = np.array([1, 1, 1, 1, 1, 0, 0], "float32")
    for activation in ("softmax", "sigmoid"):  # Padding changes nothing.
        objective = ContrastiveObjective(activation)
        few = objective(None, {"image": image[:5], "text": text[:5]}, weights=weights[:5])
        padded = objective(None, {"image": image, "text": text}, weights=weights)
        assert_close(padded[:5], few)
        assert abs(float(padded[0]) - float(objective(None, {"image": image, "text": text}, np.ones(7))[0])) > 0.1
    losses = ContrastiveObjective("softmax")(None, {"image": image, "text": text}, np.ones(7))
    assert_close(losses, np.full(7, (cross_entropy(logits) + cross_entropy(logits.T)).mean() / 2))
    metric = RecallInBatch()
    metric.update_state(None, {"image": image, "text": text}, sample_weight=weights)
    found = logits[:5, :5].argmax(axis=1) == np.arange(5)
    assert 0 < found.mean() < 1
    assert found.mean() != (logits.argmax(axis=1) == np.arange(7))[:5].mean()
    assert float(metric.result()) == pytest.approx(found.mean())


@pytest.mark.slow
def test_an_evaluation_counts_equal_images_and_texts_once(pairs, monkeypatch):
    monkeypatch.setattr(retrieval, "_CHUNK", 5)
    model = random_model(include_preprocessing=True, input_shape=(48, 48, 3))
    data = Data(dataset="table", directory=str(pairs / "pairs.csv"), test_fraction=0.9, validation_fraction=0)
    recipe = override(recipes.load("drawn_pairs"), ["fit.batch_size=4"])
    dataset = load_dataset(data, "text")
    evaluation = retrieval.evaluate(model, dataset, "test", recipe)
    examples = list(dataset.splits["test"].in_order().as_numpy_iterator())
    files, texts = (list(dict.fromkeys(example[name] for example in examples)) for name in ("image", "text"))
    assert len(files) < len(texts)
    pixels = np.stack([image_decoder(model.image_encoder)(file) for file in files]).astype("float32")
    similarity = model.image_embeddings(pixels) @ model.text_embeddings([text.decode() for text in texts]).T
    is_own = np.zeros(similarity.shape, bool)
    for example in examples:
        is_own[files.index(example["image"]), texts.index(example["text"])] = True
    for found, matrix, own in (
        (evaluation.of_texts, similarity, is_own),
        (evaluation.of_images, similarity.T, is_own.T),
    ):
        order = np.argsort(-matrix, axis=1)
        for most, recall in found.items():
            assert recall == np.take_along_axis(own, order[:, :most], axis=1).any(axis=1).mean()
    assert (evaluation.num_images, evaluation.num_texts) == similarity.shape
    assert evaluation.chance == pytest.approx(is_own.mean())
    assert len(evaluation.worst) == 8
    for index, (image, text, found) in evaluation.worst.items():
        np.testing.assert_array_equal(image, pixels[index])
        assert text.encode() in [texts[number] for number in np.flatnonzero(is_own[index])]
        assert found.encode() == texts[similarity[index].argmax()]
        assert (text == found) == is_own[index, similarity[index].argmax()]
    assert retrieval_text(evaluation).splitlines()[-1].endswith(f"{evaluation.of_images[10]:.2%}")


def test_equal_embeddings_find_nothing():
    ones, pairs = np.ones((6, 4), "float32"), np.array([(row, row) for row in range(6)])
    ranks, _ = retrieval._ranks(ones, ones, pairs)
    assert ranks.tolist() == [5] * 6


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder with random weights of CLIP, and the model."""
    folder = tmp_path_factory.mktemp("published")
    golden = keras_vit.ImageTextModel.from_pretrained(GOLDEN / "clip_hf", include_preprocessing=True)
    tokenizer = Tokenizer.from_file("clip", GOLDEN / "tokenizers" / "clip", 24)
    config = golden.text_config.replace(vocabulary_size=573, context_length=24)
    model = randomize(keras_vit.ImageTextModel(golden.image_encoder, config, "softmax", tokenizer), scale=0.1)
    projection = model.image_encoder.get_layer("predictions")
    projection.bias.assign(np.zeros(projection.bias.shape))
    keras_vit.save_weights(model, folder, "huggingface")
    return folder, model


def test_where_the_text_encoder_comes_from(pairs, published, tmp_path):
    folder, model = published
    recipe = override(recipes.load("drawn_pairs"), ["data.dataset=table", f"data.directory={pairs / 'pairs.csv'}"])
    task = Task(override(recipe, ["text.config.num_layers=1"]))
    dataset = task.load()
    learner = task.build_learner(build_model(task.recipe, 1, with_logits=True))
    words = {word for text in dataset.list_texts() for word in text.replace(",", " ,").split()}
    assert learner.text_config.vocabulary_size == len(words) + 3
    assert learner.text_config.num_layers == 1

    width = model.text_config.embedding_dim
    changes = ["text.config=none", f"text.weights={folder}", f"model.config.hidden_dim={width}"]
    recipe = override(recipe, [*changes, "model.config.num_heads=2", "model.config.num_layers=1"])
    task = Task(recipe)
    task.load()
    learner = task.build_learner(build_model(recipe, 1, with_logits=True))
    task.load_weights(learner)
    for one, other in zip(learner.text_encoder.weights, model.text_encoder.weights, strict=True):
        assert_close(one, other)
    assert learner.tokenizer.vocabulary == (folder / "tokenizer.json").read_bytes()
    image_encoder = build_model(recipe, 1, with_logits=True)
    with pytest.raises(InputError, match="has no tokenizer"):
        Task(override(recipe, [f"text.tokenizer={tmp_path}"])).build_learner(image_encoder)
    wide = build_model(override(recipe, ["model.config.hidden_dim=32"]), 1, with_logits=True)
    with pytest.raises(InputError, match=r"The text encoder returns 24 numbers, but the image encoder 32"):
        task.build_learner(wide)


@pytest.mark.slow
@pytest.mark.parametrize("frozen", ["none", "image", "text"])
@pytest.mark.combination("task=contrastive", "published weights, a frozen encoder, a run, its report and evaluate")
def test_a_run_from_published_weights(pairs, published, frozen, tmp_path):
    folder, model = published
    changes = [
        f"model.weights={folder}",
        f"data.directory={pairs / 'pairs.csv'}",
        f"text.frozen={frozen}",
        "fit.loss=softmax",
    ]
    recipe = override(recipes.load("finetune_pairs"), [*changes, "fit.batch_size=4", "fit.epochs=1"])
    task = Task(recipe)
    task.load()
    learner = task.build_learner(build_model(recipe, 1, with_logits=True))
    task.load_weights(learner)
    for one, other in zip(learner.weights, model.weights, strict=True):
        assert_close(one, other)

    run, evaluation = train.train(recipe, tmp_path)
    result = json.loads(run.recipe.read_text())["result"]
    assert result["test_recall_at_1"] == evaluation.of_texts[1]
    assert f"{evaluation.of_images[1]:.1%} of the texts" in run.report.read_text()
    trained = keras.models.load_model(run.model)
    for name in ("image", "text"):
        before, after = (getattr(each, f"{name}_encoder").get_weights() for each in (model, trained))
        same = [np.array_equal(one, other) for one, other in zip(before, after, strict=True)]
        assert all(same) if name == frozen else not any(same[:2])
    assert trained.similarity(np.zeros((1, *trained.image_encoder.input_shape[1:])), ["a", "b"]).shape == (1, 2)
    assert f"{evaluation.of_texts[1]:.2%}" in evaluate_source(run.folder)
    if frozen == "none":
        exported, sentence = export(run.folder, batch_sizes=[1])
        assert exported == run.export / "1"
        assert "Signatures: image, text and similarity" in sentence
        with pytest.raises(InputError, match="compares images with texts and predicts no classes"):
            predict(run.folder, run.samples.glob("*"))
        (tmp_path / "names.txt").write_text("0\ntwo")
        with pytest.raises(InputError, match=r"no line for these classes.*: 1, 2, 3.*no class of the data: two\."):
            evaluate_source(run.folder, ["data.dataset=digits"], names=tmp_path / "names.txt")
        for options, message in (
            ({"top_k": 1, "card": True}, "Leave out --card, --top-k"),
            ({"format": "onnx"}, "require"),
        ):
            with pytest.raises(InputError, match=message):
                export(run.folder, **options)


@pytest.mark.slow
def test_a_resumed_run_equals_a_whole_one(tmp_path, monkeypatch):
    monkeypatch.setattr(drawn_pairs, "NUM_PAIRS", {"train": 80, "test": 20})
    changes = ["fit.epochs=none", "fit.steps=4", "fit.report_every=2 steps", "fit.batch_size=16"]
    recipe = override(recipes.load("drawn_pairs"), changes)
    whole, evaluation = train.train(recipe, folder=tmp_path / "whole")

    def fit_two_steps(fitting, *arguments, fit=train.Fitting._fit_segment):
        fitting.total_steps = 2
        fit(fitting, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(train.Fitting, "_fit_segment", fit_two_steps)
        train.train(recipe, folder=tmp_path / "resumed")
    run, resumed = train.train(recipe, folder=tmp_path / "resumed")
    assert resumed.of_texts == evaluation.of_texts
    models = [keras.models.load_model(each.model) for each in (whole, run)]
    for one, other in zip(*(model.weights for model in models), strict=True):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other))


def test_weights_without_a_text_encoder_are_refused(pairs):
    changes = [f"model.weights={GOLDEN / 'eomt_hf'}", f"data.directory={pairs / 'pairs.csv'}"]
    with pytest.raises(InputError, match="no text encoder that can be read"):
        build_model(override(recipes.load("finetune_pairs"), changes), 1, with_logits=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["text.config=none"], "a text encoder is either new, with text.config, or published"),
        (["text.config.context_length=none"], "context_length must be a positive integer"),
        (["text.config.vocabulary_size=5"], "text.config.vocabulary_size follows from the texts"),
        (["text.tokenizer=a"], "text.tokenizer is only used with a published text encoder"),
        (["text.config.heads=3"], "Did you mean text.config.num_heads"),
        (["augment.mixup=0.2"], "augment.mixup is only used with"),
        (["fit.accumulation_steps=2"], "fit.accumulation_steps is only used with"),
    ],
)
def test_recipes_that_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        override(recipes.load("drawn_pairs"), changes)
