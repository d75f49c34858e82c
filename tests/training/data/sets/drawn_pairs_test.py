"""The drawn pairs never change, and the captions describe the pictures."""

import hashlib

import numpy as np

from training.data.sets import drawn_pairs as pairs


def test_captions_of_the_test_split_differ_in_one_word():
    for most_objects in (1, 2):
        captions = [pairs.draw("test", number, most_objects)[1].split() for number in range(pairs.NUM_PAIRS["test"])]
        assert len(set(map(tuple, captions))) == len(captions)
        for first, second in zip(captions[::2], captions[1::2], strict=True):
            assert sum(a != b for a, b in zip(first, second, strict=True)) == 1
        assert {word for caption in captions for word in caption} == set(pairs.WORDS) - (
            {"and"} if most_objects == 1 else set()
        )


def test_pictures_show_their_captions():
    for number in range(20):
        pixels, caption = pairs.draw("train", number)
        is_bright = (pixels.max(axis=-1) > 110).reshape(3, 16, 3, 16).mean(axis=(1, 3)) > 0.15
        assert is_bright.sum() == caption.count("at the")
        for text in caption.split(" and "):
            _, color, shape, _, _, row, column = text.split()
            y, x = ("top", "middle", "bottom").index(row), ("left", "centre", "right").index(column)
            cell = pixels[16 * y : 16 * y + 16, 16 * x : 16 * x + 16].astype(float)
            assert np.abs(cell[pairs.SHAPES[shape]].mean(axis=0) - pairs.COLORS[color]).max() < 50
            assert cell[~pairs.SHAPES[shape]].mean() < 80


def test_the_pairs_stay_as_they_are():
    """Results are comparable only if the pairs never change."""
    digest = hashlib.sha256()
    for split in pairs.NUM_PAIRS:
        for number in range(3):
            pixels, caption = pairs.draw(split, number)
            digest.update(pixels.tobytes() + caption.encode())
    assert digest.hexdigest()[:16] == "9f4e7873600e0fc5"
