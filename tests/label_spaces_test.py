import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import Output, decode_predictions
from keras_vit.label_spaces import imagenet1k_classes, imagenet21k_classes


def test_decode_predictions():
    # Well-known indices of the sorted WordNet ids.
    known = {0: ("n01440764", "tench"), 207: ("n02099601", "golden_retriever"), 999: ("n15075141", "toilet_tissue")}
    for index, (wordnet_id, name) in known.items():
        [[(found_id, found_name, score)]] = keras_vit.decode_predictions(np.eye(1000)[[index]], top=1)
        assert found_id == wordnet_id
        assert found_name.lower().replace(" ", "_") == name
        assert score == 1.0


def test_decode_predictions_orders_by_score():
    scores = np.full((2, 1000), 1e-4)
    scores[0, [5, 3, 900]] = [0.2, 0.5, 0.1]
    scores[1, 7] = 0.9
    classes = imagenet1k_classes()
    first, second = keras_vit.decode_predictions(keras.ops.convert_to_tensor(scores, "float32"), top=4)
    assert [entry[:2] for entry in first] == [classes[index] for index in (3, 5, 900, 0)]  # Tie: the first wins.
    assert [entry[2] for entry in first] == pytest.approx([0.5, 0.2, 0.1, 1e-4])
    assert all(type(entry[2]) is float for entry in first)
    assert second[0][:2] == classes[7]
    assert len(keras_vit.decode_predictions(scores)[0]) == 5
    assert len(keras_vit.decode_predictions(scores, top=1000)[0]) == 1000


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (Output("classes", "softmax", ["a", "b", "c"]), [("1", "b", 0.7), ("2", "c", 0.6)]),
        (Output("labels", "sigmoid", ["a", "b", "c"]), [("1", "b", 0.7), ("2", "c", 0.6)]),
        (Output("values", None, ["a", "b", "c"]), [("0", "a", 0.1), ("1", "b", 0.7), ("2", "c", 0.6)]),
        (Output("classes", "softmax"), [("1", "1", 0.7), ("2", "2", 0.6)]),
    ],
)
def test_decode_predictions_of_a_described_output(output, expected):
    assert decode_predictions(np.array([[0.1, 0.7, 0.6]]), top=2, output=output) == [expected]


def test_logits_of_a_described_output_are_converted():
    [[(_, _, score)]] = decode_predictions(np.array([[0.0, 2.0]]), top=1, output=Output("classes"))
    assert score == pytest.approx(np.exp(2) / (1 + np.exp(2)))
    assert decode_predictions(np.array([[-1.0, 2.0]]), output=Output("labels", names=["a", "b"])) == [
        [("1", "b", pytest.approx(1 / (1 + np.exp(-2))))]
    ]
    with pytest.raises(ValueError, match=r"can be decoded\. Received: depth of shape \(1, 2, 2, 1\)"):
        decode_predictions(np.zeros((1, 2, 2, 1)), output=Output("depth"))
    with pytest.raises(ValueError, match=r"NaN in rows \[0\]"):
        decode_predictions(np.array([[np.nan, 1.0]]), output=Output("values"))


def test_imagenet1k_classes():
    classes = imagenet1k_classes()
    wordnet_ids = [wordnet_id for wordnet_id, _ in classes]
    assert len(set(wordnet_ids)) == 1000
    assert wordnet_ids == sorted(wordnet_ids)


def test_decode_predictions_refuses_other_classes():
    for shape in ((2, 999), (1000,), (2, 1000, 1)):
        with pytest.raises(ValueError, match=r"needs scores of shape \(B, 1000\) .* or \(B, 21843\) .*pass output="):
            keras_vit.decode_predictions(np.zeros(shape))
    for shape, label_space in (((2, 21843), "imagenet1k"), ((2, 1000), "imagenet21k")):
        count = {"imagenet1k": 1000, "imagenet21k": 21843}[label_space]
        with pytest.raises(ValueError, match=rf"needs scores of shape \(B, {count}\) for {label_space}\. Received"):
            keras_vit.decode_predictions(np.zeros(shape), label_space=label_space)
    with pytest.raises(ValueError, match=r"must be None or one of imagenet1k, imagenet21k\. Received: 'cifar10'"):
        keras_vit.decode_predictions(np.zeros((1, 10)), label_space="cifar10")
    for top in (0, 1001, -1):
        with pytest.raises(ValueError, match=f"top must be from 1 to 1000. Received: {top}"):
            keras_vit.decode_predictions(np.zeros((1, 1000)), top=top)


def test_decode_predictions_refuses_what_is_no_number():
    scores = np.zeros((3, 1000))
    scores[[0, 2], 17] = np.nan
    with pytest.raises(ValueError, match=r"probabilities must be numbers. Received: NaN in rows \[0, 2\]"):
        keras_vit.decode_predictions(scores)
    scores[[0, 2], 17] = -np.inf  # An excluded class.
    assert keras_vit.decode_predictions(scores, top=1)[0][0][2] == 0


def test_decode_predictions_refuses_other_lists_of_imagenet21k():
    for count in (21841, 21842):
        with pytest.raises(ValueError, match=rf"Received: shape \(1, {count}\)\. .*class lists"):
            keras_vit.decode_predictions(np.zeros((1, count)))


def _cache(folder, monkeypatch, ids, lemmas):
    """Writes the two lists to the paths where downloads are cached."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(folder))
    folder = folder / "storage.googleapis.com" / "bit_models"
    folder.mkdir(parents=True)
    (folder / "imagenet21k_wordnet_ids.txt").write_text("".join(f"{line}\n" for line in ids))
    (folder / "imagenet21k_wordnet_lemmas.txt").write_text("".join(f"{line}\n" for line in lemmas))


def test_decode_predictions_of_imagenet21k(tmp_path, monkeypatch):
    ids = [f"n{index:08d}" for index in range(21843)]
    _cache(tmp_path, monkeypatch, ids, [f"thing {index}, Ding {index}" for index in range(21843)])
    scores = np.full((2, 21843), 1e-6)
    scores[0, [21842, 17]] = [0.6, 0.3]
    scores[1, 12345] = 0.9
    for label_space in (None, "imagenet21k"):
        first, second = keras_vit.decode_predictions(scores, top=2, label_space=label_space)
        assert [entry[:2] for entry in first] == [
            ("n00021842", "thing 21842, Ding 21842"),
            ("n00000017", "thing 17, Ding 17"),
        ]
        assert [entry[2] for entry in first] == pytest.approx([0.6, 0.3])
        assert second[0] == ("n00012345", "thing 12345, Ding 12345", pytest.approx(0.9))
    with pytest.raises(ValueError, match="top must be from 1 to 21843"):
        keras_vit.decode_predictions(scores, top=21844)


def test_imagenet21k_lists_of_another_length_are_refused(tmp_path, monkeypatch):
    ids = [f"n{index:08d}" for index in range(21843)]
    _cache(tmp_path, monkeypatch, ids, ids[:-2])
    with pytest.raises(OSError, match=r"lemmas\.txt has 21841 lines, not 21843\. Delete it"):
        imagenet21k_classes()
