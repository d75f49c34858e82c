"""`make test-changed` starts few processes, and runs the tests of changed modules first."""

import collections
import types
from unittest import mock

from tests.changed import SECONDS_OF_ONE_PROCESS, _WholeFiles, commands, own_tests, pytest_collection_modifyitems

CHANGED = "keras_vit/layers/regularization/drop_path.py"
OWN, OTHER = "tests/layers/regularization/drop_path_test.py", "tests/models/vit_test.py"


def test_own_tests():
    assert [*own_tests([CHANGED, "training/cli/fit.py", OTHER])] == [OWN, "tests/training/cli/fit_test.py", OTHER]


def _recorded(seconds, tests=(f"{OWN}::test_layer", f"{OTHER}::test_vit", f"{OTHER}::test_file")):
    """Records of pytest-testmon: a layer has changed, and each test takes `seconds`."""
    return types.SimpleNamespace(
        all_tests=tests,
        system_packages_change=False,
        files_of_interest=[],
        source_tree=None,
        db=types.SimpleNamespace(fetch_unknown_files=lambda hashes, number: [CHANGED]),
        exec_id=1,
        unstable_files={OWN, OTHER},
        failing_tests=[],
        avg_durations=collections.defaultdict(lambda: seconds),
    )


def test_commands():
    [first], changed = commands("jax", _recorded(1.0, tests=()))
    assert ("-n" in first, "-x" in first, "each_backend and not slow" in first, changed) == (True, False, True, [])
    [brief], changed = commands("tensorflow", _recorded(SECONDS_OF_ONE_PROCESS / 3))
    assert ("-n" in brief, "-x" in brief, changed) == (False, True, [CHANGED])
    own, whole = commands("tensorflow", _recorded(SECONDS_OF_ONE_PROCESS / 2))[0]
    assert (own[-2:], "-n" in own, "no:testmon" in own) == (["-x", OWN], False, True)
    assert ("-n" in whole, "-x" in whole, "no:testmon" in whole) == (True, True, False)


def test_tests_that_marks_deselect_are_not_recorded(monkeypatch):
    """pytest-testmon would collect their files in each call. Tests that the user's arguments deselect stay recorded."""
    quick, slow = (types.SimpleNamespace(nodeid=f"{OWN}::{name}", path=OWN) for name in ("test_layer", "test_slow"))
    config = types.SimpleNamespace(stash={}, testmon_data=mock.MagicMock(exec_id=1))
    pytest_collection_modifyitems(config, [quick])
    for limits in ("-k layer", ""):
        config.testmon_data.db.__enter__().delete_test_executions.assert_not_called()
        monkeypatch.setenv("LIMITS", limits)
        list(_WholeFiles().pytest_collection_modifyitems(config, [quick, slow]))
    config.testmon_data.db.__enter__().delete_test_executions.assert_called_once_with([slow.nodeid], 1)
