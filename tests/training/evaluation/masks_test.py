"""Objects: average precision equals that of annotations in COCO's format, panoptic quality equals a transcription."""

import dataclasses

import numpy as np
import pytest
import sklearn.metrics
from pycocotools import mask as run_lengths
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tests.reference.panoptic_quality import panoptic_quality
from tests.training.evaluation.samples import evaluate_samples
from training.evaluation.masks import evaluate_instances, evaluate_panoptic
from training.reports.text import masks_text
from training.tasks.masks import Panoptic

NAMES = ("person", "car", "sky")
SIZE = (50, 70)


def evaluation_of(evaluate, truths, predictions, *arguments):
    """Evaluates a model whose outputs for image i are mapped to `predictions[i]`. `truths` are (segments, classes)."""
    segments, classes = (np.stack(arrays).astype("int32") for arrays in zip(*truths, strict=True))
    numbers = np.arange(len(segments))[:, None, None, None] + np.zeros_like(segments)[..., None]
    columns = {"image": numbers, "segments": segments, "classes": classes}
    arguments = lambda sample: sample, lambda masks, objects: predictions[int(objects[0])], *arguments
    return evaluate_samples(evaluate, columns, lambda x: {"masks": x + 0.0, "objects": x[:, 0, 0]}, NAMES, *arguments)


def random_images():
    """Lists of true (segments, classes) and predicted (masks, classes, scores), which are near the true ones."""
    rng, truths, predictions, (rows, columns) = np.random.default_rng(0), [], [], np.mgrid[: SIZE[0], : SIZE[1]]
    for image in range(9):
        y, x, height, width = rng.uniform(0, 1, (4, 5, 1, 1)) * np.array([*SIZE, 25, 35])[:, None, None, None]
        ellipses = ((rows - y) / (height + 2)) ** 2 + ((columns - x) / (width + 2)) ** 2 < 1
        segments, classes = (ellipses * np.arange(1, 6)[:, None, None]).max(axis=0), rng.integers(0, 2, 5)
        near = rng.integers(1, 6, 7)
        masks = np.stack([np.roll(segments == k, rng.integers(-2, 3, 2), (0, 1)) for k in near])
        predictions.append((masks, np.where(rng.random(7) < 0.8, classes[near - 1], 0), rng.random(7)))
        truths.append((segments, np.where(rng.random(5) < 0.2, -1, classes) if image else classes - classes - 1))
    return truths, predictions


def coco_index(images):
    """Annotations as in COCO's files. `images` are lists of (mask, class, score). Class -1 is a crowd of each class."""
    index, found = COCO(), []
    for image, (mask, label, score) in ((image, each) for image, objects in enumerate(images) for each in objects):
        known = {"image_id": image, "score": score, "area": int(mask.sum()), "iscrowd": int(label < 0)}
        known["segmentation"] = run_lengths.encode(np.asfortranarray(mask, "uint8"))
        for one in [label] if label >= 0 else range(3):
            found.append(known | {"category_id": one, "id": len(found) + 1})
    facts = [{"id": number, "height": SIZE[0], "width": SIZE[1]} for number in range(len(images))]
    index.dataset = {"images": facts, "categories": facts[:3], "annotations": found}
    index.createIndex()
    return index


def test_average_precision_is_that_of_coco():
    truths, predictions = random_images()
    true = [[(s == k, int(c), 0) for k, c in enumerate(classes, 1) if (s == k).any()] for s, classes in truths]
    coco = COCOeval(coco_index(true), coco_index([list(zip(*found, strict=True)) for found in predictions]), "segm")
    for step in (coco.evaluate, coco.accumulate, coco.summarize):
        step()
    evaluation = evaluation_of(evaluate_instances, truths, predictions)
    total, small, medium, large = evaluation.groups.values()
    assert 0.1 < coco.stats[0] < 0.9
    np.testing.assert_allclose([*total, small[0], medium[0]], coco.stats[:5], rtol=1e-12)
    assert np.isnan([*large, *evaluation.class_scores[2]]).all()
    np.testing.assert_allclose(evaluation.class_scores[:2].mean(axis=0), total)
    np.testing.assert_allclose([curve.mean() for curve in evaluation.curves.values()], total)


def test_instances_are_counted_once():
    truth = np.array([[1, 1, 1, 0, 2, 2, 2, 0, 3, 3, 0, 4, 4, 4, 4]]), np.array([0, 0, 1, -1])
    found = [  # (pixels, class, score)
        ([10, 11, 12], 0, 0.6),  # Mostly in the crowd: does not count.
        ([8, 9], 1, 0.4),  # The score is too low.
        ([0, 1], 1, 0.8),  # False, because the next one has a higher score.
        ([0, 1, 2], 0, 0.9),
        ([5, 6], 1, 0.8),  # Taken for another class.
        ([7, 8], 1, 0.7),  # False: the overlap is a third.
    ]
    pixels, classes, scores = zip(*found, strict=True)
    masks = np.stack([np.isin(np.arange(15), each)[None] for each in pixels])
    evaluation = evaluation_of(evaluate_instances, [truth], [(masks, classes, scores)])
    np.testing.assert_array_equal(evaluation.matches.counts, [[1, 1, 0, 0], [0, 0, 0, 1], [0] * 4, [0, 2, 0, 0]])
    results = [(score.name, score.objects, score.missed, score.taken_for) for score in evaluation.by_class]
    assert results == [("car", 1, 1, ""), ("person", 2, 0, "car"), ("sky", 0, 0, "")]
    [(error, _, _, (painted, classes))] = evaluation.worst.values()
    assert error == pytest.approx(1 - 2 / (2 * 2 + 1 + 2))
    assert np.append(-1, classes)[painted].tolist() == [[0, 0, 0, -1, -1, 1, 1, 1, 1, -1, 0, 0, 0, -1, -1]]


@pytest.mark.parametrize(
    ("truth", "prediction", "overlap", "counts"),  # Counts of right, false and missed objects; segment 3 is a crowd.
    [
        ("111000", "550555", 2 / 3, (1, 0, 0)),  # Void is removed from the prediction.
        ("111100", "550000", 0, (0, 1, 1)),  # Half is not enough.
        ("11111100", "00005555", 0, (0, 1, 1)),
        ("11111000", "00005550", 0, (0, 0, 1)),  # Mostly void: does not count as false.
        ("111333", "555550", 3 / 5, (1, 0, 0)),  # A crowd is not removed.
        ("111133", "055555", 0, (0, 1, 1)),
        ("111330", "005555", 0, (0, 0, 1)),  # Mostly void or in a crowd.
        ("222200", "555000", 0, (0, 1, 0)),  # Another class.
        ("220000", "555550", 0, (0, 0, 0)),  # Another class, but mostly void.
    ],
)
def test_void_and_crowds(truth, prediction, overlap, counts):
    truth, prediction = (np.array([[*map(int, row)]]) for row in (truth, prediction))
    truths, predictions = [(truth, np.array([0, 1, -1]))], [(prediction, [(5, 0)])]
    found = evaluation_of(evaluate_panoptic, truths, predictions, [True] * 3).matches
    assert found.overlaps[0] == pytest.approx(overlap)
    assert (found.counts[0, 0], found.counts[1:, 0].sum(), found.counts[0, -1]) == counts


@pytest.mark.parametrize(("is_thing", "quality"), [(None, 0), ((True, False), 1)])
def test_stuff_of_a_class_is_one_segment(is_thing, quality):
    """Two queries predict the halves of a segment."""
    pixels = np.sign(np.arange(8) - 3.5).reshape(1, 1, 8, 1).repeat(4, axis=1).astype("float32")
    columns = {"image": 9 * pixels, "segments": np.ones_like(pixels, "int32"), "segment_classes": np.array([[1]])}

    def outputs_of(images):
        objects = 0 * images[:, :2, :3, 0] + np.array([0, 9, 0], "float32")
        return {"masks": images * np.array([1, -1], "float32"), "objects": objects}

    def evaluate(model, dataset, splits, recipe):
        return Panoptic(recipe).evaluate(model, dataclasses.replace(dataset, is_thing=is_thing), splits)

    evaluation = evaluate_samples(evaluate, columns, outputs_of, ("tree", "sky"))
    assert evaluation.totals["PQ"] == quality
    np.testing.assert_equal(evaluation.groups["stuff"][0], quality or np.nan)


def test_images_without_objects():
    nothing, person, void = np.zeros((3, 5), int), np.ones((3, 5), int), np.array([-1])
    truths = [(nothing, void), (nothing, void), (person, np.array([0]))]
    none = np.zeros((0, 3, 5)), [], []
    evaluation = evaluation_of(evaluate_instances, truths, [none, (person[None], [0], [0.9]), none])
    assert [evaluation.examples[image][0] for image in range(3)] == [0, 1, 1]
    predictions = [(nothing, []), (person, [(1, 0)]), (nothing, [])]
    evaluation = evaluation_of(evaluate_panoptic, truths, predictions, [True] * 3)
    assert [evaluation.examples[image][0] for image in range(3)] == [0, 0, 1]  # Void is not wrong.
    assert evaluation.totals == {"PQ": 0, "SQ": 0, "RQ": 0}


def pixels_of(array, value):
    return set(np.flatnonzero(array == value).tolist())


def test_panoptic_quality_is_that_of_the_paper():
    truths, rng, predictions, images = random_images()[0], np.random.default_rng(0), [], []
    for segments, classes in truths:
        values = rng.permutation([-1, 3, 4, 20, 21, 22])  # Any numbers. Nothing is predicted for the first.
        found = values[np.roll(segments, rng.integers(-2, 3, 2), (0, 1))]
        labels = np.where(rng.random(5) < 0.7, np.maximum(classes, 0), rng.integers(0, 3, 5))
        pairs = list(zip(values[1:].tolist(), labels.tolist(), strict=True))
        predictions.append((found, pairs))
        true = [(c, pixels_of(segments, k)) for k, c in enumerate(classes.tolist(), 1) if (segments == k).any()]
        groups = set().union(*(pixels for c, pixels in true if c < 0))
        predicted = [(c, pixels_of(found, value)) for value, c in pairs if (found == value).any()]
        images.append((true, predicted, pixels_of(segments, 0), groups))
    evaluation = evaluation_of(evaluate_panoptic, truths, predictions, [True, False, False])
    expected = np.array([panoptic_quality(images, label) for label in range(3)])
    assert 0.1 < expected[0, 0] < expected[0, 1] < 0.95
    np.testing.assert_allclose(evaluation.class_scores, expected, rtol=1e-12)
    total, things, stuff = evaluation.groups.values()
    np.testing.assert_allclose([total, things, stuff], [expected.mean(axis=0), expected[0], expected[1:].mean(axis=0)])
    true = np.stack([np.append(-1, classes)[segments] for segments, classes in truths])
    found = np.stack([sum((m == value) * (label - 3) for value, label in pairs) + 3 for m, pairs in predictions])
    ious = sklearn.metrics.jaccard_score(true[true >= 0], found[true >= 0], average=None, labels=[0, 1, 2])
    assert evaluation.mean_iou == pytest.approx(ious.mean())

    assert list(evaluation.examples) == [0, 1, 2, 3, 4, 5, 6, 8]
    errors = [error for error, *_ in evaluation.worst.values()]
    assert errors == sorted(errors, reverse=True)
    *_, (segments, classes), (numbers, labels) = evaluation.examples[8]
    np.testing.assert_array_equal(np.append(-1, classes)[segments], true[8])
    np.testing.assert_array_equal(np.append(3, labels)[numbers], found[8])
    lines = masks_text(evaluation).splitlines()
    assert lines[3].split() == ["all", *(f"{value:.1%}" for value in expected.mean(axis=0))]
    assert {line.split()[0] for line in lines[-3:]} == set(NAMES)
