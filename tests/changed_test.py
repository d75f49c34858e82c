"""`make test-changed` runs the tests of changed modules first."""

from tests.changed import own_tests


def test_own_tests():
    found = own_tests(["keras_vit/layers/drop_path.py", "training/runs/folder.py", "tests/models/vit_test.py"])
    assert list(found) == [
        "tests/layers/drop_path_test.py",
        "tests/training/runs/folder_test.py",
        "tests/models/vit_test.py",
    ]
