"""What a run records about its data set. tests/training/seen_images_test.py tests how it is used."""

import pytest

from training.data.contents import Contents, Item, Record, merge_records, read_contents
from training.errors import InputError


@pytest.mark.parametrize(
    "content", ["", "split,path\ntrain,cat/1.png", "split,path,size,digest,label\ntrain,a,x,b,c", "\0"]
)
def test_a_damaged_record_is_refused(tmp_path, content):
    path = tmp_path / "splits.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=r"splits\.csv cannot be read: .* Restore the file"):
        read_contents(path)


def test_an_image_of_two_runs_is_seen_if_one_of_them_was_trained_on_it():
    first, second, third = (Item(name, 1, name) for name in "abc")
    one = Record("one", Contents({"train": (first,), "test": (second,), "validation": (third,)}), "continue")
    other = Record("other", Contents({"validation": (first,), "train": (second,), "test": (third,)}), "continue")
    for records in ([one, other], [other, one]):
        merged = merge_records(records)
        assert [merged.contents.split_of(item) for item in (first, second, third)] == ["train", "train", "validation"]
        assert merged.run in ("one or other", "other or one")
    assert merge_records([one]) is one
    assert merge_records([]) is None
