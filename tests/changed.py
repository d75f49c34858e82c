"""Runs the test files of the default tier that execute changed lines: `make test-changed`.

pytest-testmon records which lines each test executes. It is asked before pytest starts, so that only as many processes
start as pay: each of them imports TensorFlow or JAX, which takes longer than most test files. The tests of the changed
modules run first, and the first failure ends the run.
"""

import collections
import os
import pathlib
import subprocess
import sys

import pytest
from testmon.testmon_core import TestmonData

ROOT = pathlib.Path(__file__).parent.parent
BACKENDS = {"tensorflow": [], "jax": ["-m", "each_backend and not slow"]}
SECONDS_OF_ONE_PROCESS = 40
"""If the tests take longer than this, two processes run them."""
_ITEMS = pytest.StashKey()


def own_tests(paths):
    """Paths of the test files of some modules. The test file of a test file is this file itself."""
    for path in map(pathlib.PurePath, paths):
        folder = path.relative_to("keras_vit") if path.parts[0] == "keras_vit" else path
        is_test = path.parts[0] == "tests"
        yield str(path if is_test else pathlib.PurePath("tests", folder.parent, f"{path.stem}_test.py"))


def commands(backend, data):
    """The commands that run the affected tests on a backend, and the changed files.

    Args:
        backend: A key of `BACKENDS`.
        data: `TestmonData` of the recorded tests.
    """
    plain = [sys.executable, "-m", "pytest", "-p", "no:randomly", *BACKENDS[backend]]
    in_one = [*plain, "-p", "tests.changed", "--testmon-forceselect", "--testmon-env", backend]
    in_two = [*in_one, "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart=0"]
    if not data.all_tests or data.system_packages_change:
        return [in_two], []
    hashes = {name: file.fs_fsha for name in data.files_of_interest if (file := data.source_tree.get_file(name))}
    changed = data.db.fetch_unknown_files(hashes, data.exec_id)
    files = data.unstable_files | {test.partition("::")[0] for test in data.failing_tests}
    num_tests = collections.Counter(test.partition("::")[0] for test in data.all_tests)
    if sum(data.avg_durations[file] * num_tests[file] for file in files) <= SECONDS_OF_ONE_PROCESS:
        return [[*in_one, "-x"]], changed
    runs = [[*in_two, "-x"]]
    if own := sorted(files.intersection(own_tests(changed))):
        # They end before two processes have collected all files. pytest-testmon would forget the tests of other files.
        runs.insert(0, [*plain, "-p", "no:testmon", "-x", *own])
    return runs, changed


def main(arguments):
    for backend in BACKENDS:
        data = TestmonData.for_local_run(str(ROOT), environment=backend)
        data.determine_stable()
        runs, changed = commands(backend, data)
        variables = {"KERAS_BACKEND": backend, "CHANGED_FILES": os.pathsep.join(changed), "LIMITS": " ".join(arguments)}
        for run in runs:
            status = subprocess.run([*run, *arguments], cwd=ROOT, env=os.environ | variables).returncode
            if status not in (0, 5):  # 5: no test is affected.
                return status
    return 0


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Runs after marks deselect tests and before pytest-testmon, which is registered later."""
    config.stash[_ITEMS] = list(items)


class _WholeFiles:
    """All tests of a file run if one of them is affected: a line of a shared fixture counts for the first one only."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, config, items):
        collected = {item.nodeid for item in items}
        yield
        # The first process writes into the database. Tests that -k of the user deselects must run in a later call.
        if not hasattr(config, "workerinput") and not os.environ.get("LIMITS"):
            # pytest-testmon has also recorded the tests that marks deselect. It would collect their files in each call.
            deselected = collected.difference(item.nodeid for item in config.stash[_ITEMS])
            with config.testmon_data.db as database:
                database.delete_test_executions(list(deselected), config.testmon_data.exec_id)
        files = {item.path for item in items}
        changed = os.environ.get("CHANGED_FILES", "").split(os.pathsep)
        own = {ROOT / path for path in own_tests(filter(None, changed))}
        whole = [item for item in config.stash[_ITEMS] if item.path in files]
        items[:] = sorted(whole, key=lambda item: item.path not in own)


def pytest_configure(config):
    config.pluginmanager.register(_WholeFiles())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
