"""What a run records about its data set. tests/training/seen_images_test.py tests how it is used."""

import dataclasses

import pytest

from training.data.contents import Contents, Item, Record, merge_records, read_contents
from training.data.loading import load_dataset
from training.errors import InputError
from training.recipe.assignments import override


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


@pytest.mark.slow
def test_parts_of_tfds_that_were_training_images_are_not_test_images(brief_recipe, capsys):
    def load(*changes, record=None):
        return load_dataset(override(brief_recipe, [f"data.{change}" for change in changes]).data, record=record)

    contents = load("validation_split=train[80%:]", "train_split=train[:80%]", "validation_fraction=0").contents
    assert [item.path for item in contents.items["train"]] == ["digits/1.0.0:train[0:1150]"]
    record = Record("runs/one", contents)
    load("validation_split=train[80%:]", "train_split=train[:80%]", "validation_fraction=0", record=record)
    assert "changed" not in capsys.readouterr().out
    changed = "train_split=train[50%:]", "test_split=train[:5%]", "validation_fraction=0"
    with pytest.raises(
        InputError, match=r"runs/one was trained on digits/1\.0\.0:train\[0:1150\], which .* test split train\[0:72\]"
    ):
        load(*changed, record=record)
    # In another version, the images may have another order.
    older = dataclasses.replace(contents.items["train"][0], path="digits/0.9.0:train[500:1150]")
    with pytest.raises(InputError, match="or the version that the run used"):
        load(*changed, record=Record("runs/one", dataclasses.replace(contents, items={"train": (older,)})))
