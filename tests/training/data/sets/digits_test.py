import numpy as np

from training.data.sets.digits import PICTURE_SHAPE, draw_triple, load_scans


def test_a_picture_shows_three_scans_of_its_split():
    scans = load_scans()
    for split, other in (("train", "test"), ("test", "train")):
        known, unseen = ({scan.tobytes() for scan in scans[name][1]} for name in (split, other))
        for number in range(5):
            image, digits = draw_triple(split, number)
            assert (image.shape, image.dtype, len(digits)) == (PICTURE_SHAPE, "uint8", 3)
            for position, digit in enumerate(digits):
                cell = image[:, 10 * position : 10 * (position + 1)]
                windows = [cell[top : top + 8, left : left + 8] for top in range(3) for left in range(3)]
                found = [window.tobytes() for window in windows if window.tobytes() in known]
                assert any(scans[split][2][_index(scans[split][1], content)] == digit for content in found)
                assert not any(window.tobytes() in unseen - known for window in windows)


def _index(scans, content):
    return [scan.tobytes() for scan in scans].index(content)


def test_pictures_follow_from_their_numbers():
    first, again, next_one = (draw_triple("train", number) for number in (7, 7, 8))
    np.testing.assert_array_equal(first[0], again[0])
    assert not np.array_equal(first[0], next_one[0])
