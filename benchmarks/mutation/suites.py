"""Suites of tests: a copy of their checkout to run them in, and the record of the lines that each test executes."""

import collections
import compileall
import dataclasses
import functools
import json
import os
import pathlib
import py_compile
import shutil
import subprocess
import sys
import tempfile

from benchmarks import quick_xla
from benchmarks.mutation.drawing import PACKAGES, digest

_STARTUP = pathlib.Path(__file__).with_name("startup")


def copy_checkout(checkout, target):
    """Clones a checkout with the files of its work tree, committed or not, except those that git ignores.

    Compiled files contain a digest of their source, so that a mutant of the same size in the same second is detected.
    """
    clone = ["git", "clone", "--quiet", "--shared", "--no-checkout", str(checkout), str(target)]
    subprocess.run(clone, check=True)
    subprocess.run(["git", "-C", str(target), "reset", "--quiet"], check=True)
    for name in files(checkout):
        path = pathlib.Path(target, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(pathlib.Path(checkout, name), path)
    for package in PACKAGES:
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(pathlib.Path(target, package), quiet=1, invalidation_mode=mode)


def files(checkout):
    """Paths of the files of a work tree, from its root, except those that git ignores."""
    command = ["git", "-C", str(checkout), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted(name for name in set(names) if name and pathlib.Path(checkout, name).is_file())


def digests(checkout, folders):
    """{name: digest} of the files in some folders of a work tree."""
    own = [name for name in files(checkout) if name.split("/")[0] in folders]
    return {name: digest(pathlib.Path(checkout, name).read_bytes()) for name in own}


def fingerprint(checkout):
    """Digest of the library and the tests."""
    return digest(json.dumps(digests(checkout, (*PACKAGES, "tests"))).encode())


def commit(checkout):
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def environment(root, backend, cache):
    """Variables with which processes import the library from `root`, in any working directory.

    JAX reads its variables when it is imported. In a server, it is imported before the conftest.py of the tests.
    """
    changes = {"PYTHONPATH": str(root), "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if backend == "jax":
        changes |= quick_xla.variables(pathlib.Path(cache, "jax"))
    return {name: value for name, value in os.environ.items() if not name.startswith("MUTATION_")} | changes


def pytest_options(cache):
    """Options with one folder of compiled programs for all, and without random order and seeds."""
    return ["-o", f"cache_dir={cache}", "-p", "no:randomly"]


def trace(folder, checkout, backend, arguments, cache):
    """Runs a suite, and records which tests execute which lines.

    Args:
        folder: Folder of the record. An existing folder is removed.
        checkout: Work tree. Nothing is written into it.
        backend: Backend of Keras.
        arguments: Arguments of pytest.
        cache: Cache folder of pytest, which holds programs that the tests compile.

    Returns:
        Exit status of pytest.
    """
    shutil.rmtree(folder, ignore_errors=True)
    lines = pathlib.Path(folder, "lines")
    lines.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="mutation-") as work:
        root = pathlib.Path(work, "tree")
        copy_checkout(checkout, root)
        facts = {"checkout": str(pathlib.Path(checkout).resolve()), "fingerprint": fingerprint(root)}
        variables = environment(root, backend, cache) | {
            "MUTATION_ROOT": str(root),
            "MUTATION_TRACE": str(lines.resolve()),
        }
        variables["PYTHONPATH"] = os.pathsep.join([str(_STARTUP), str(root)])
        options = ["-p", "mutation_contexts", *pytest_options(cache), *arguments]
        status = subprocess.run([sys.executable, "-m", "pytest", *options], cwd=root, env=variables).returncode
    facts |= {"backend": backend, "arguments": arguments, "status": status}
    pathlib.Path(folder, "suite.json").write_text(json.dumps(facts, indent=1))
    return status


@dataclasses.dataclass
class Suite:
    """A suite that was traced.

    Args:
        checkout: Its work tree.
        fingerprint: Digest of its library and tests when it was traced.
        backend: Backend of Keras.
        own: {test: processor time} of the tests that passed, without the time of shared contexts.
        shared: {test: contexts that it uses}. Contexts are fixtures and cached functions.
        spent: {context: processor time}
        lines: {path: {line: contexts that execute it}}
        users: {context: contexts that use it}
    """

    checkout: str
    fingerprint: str
    backend: str
    own: dict
    shared: dict
    spent: dict
    lines: dict
    users: dict

    @property
    def name(self):
        return f"{pathlib.Path(self.checkout).name} on {self.backend}"

    @functools.cached_property
    def seconds(self):
        """{test: processor time if it runs alone}"""
        return {test: self.cost([test]) for test in self.own}

    def cost(self, tests):
        """Processor time of tests that run together. Shared contexts count once."""
        shared = set().union(*(self.shared[test] for test in tests))
        return sum(self.own[test] for test in tests) + sum(self.spent[context] for context in shared)

    def within(self, tests, limit):
        """The tests, in their order, that fit into a processor time of `limit`. The first one is always included."""
        kept, seen, spent = [], set(), 0.0
        for test in tests:
            new = self.shared[test] - seen
            cost = self.own[test] + sum(self.spent[context] for context in new)
            if spent + cost <= limit or not kept:
                kept.append(test)
                seen |= new
                spent += cost
        return kept

    def tests_at(self, path, lines):
        """Tests that execute one of the lines, and tests that share a context with them.

        A shared context, such as the model of a fixture, may have run for the first test only.
        """
        by_line = self.lines.get(path, {})
        contexts = set().union(*(by_line[line] for line in lines if line in by_line))
        direct = set().union(*map(self._tests_using, contexts))
        shared = [context for context, tests in self._sharing.items() if not direct.isdisjoint(tests)]
        return direct, set().union(*(self._sharing[context] for context in shared)) - direct

    def runs_at_import(self, path, line):
        return "" in self.lines.get(path, {}).get(line, ())

    @functools.cached_property
    def _sharing(self):
        """{context: tests that use it} for the contexts that execute lines of the library."""
        executing = set().union(*(contexts for by_line in self.lines.values() for contexts in by_line.values()))
        return {context: self._tests_using(context) for context in executing - self.own.keys() if context}

    @functools.cached_property
    def _known(self):
        return {}

    def _tests_using(self, context):
        if context not in self._known:
            self._known[context] = set()  # Ends the recursion if contexts use each other.
            tests = {context} & self.own.keys()
            self._known[context] = tests.union(*map(self._tests_using, self.users.get(context, ())))
        return self._known[context]


def read_suite(folder):
    """The `Suite` that `trace` recorded."""
    facts = json.loads(pathlib.Path(folder, "suite.json").read_text())
    folder = facts.get("whole", folder)
    lines, users = collections.defaultdict(lambda: collections.defaultdict(set)), collections.defaultdict(set)
    spent, outcomes = collections.Counter(), {}
    for path in sorted(pathlib.Path(folder, "lines").iterdir()):
        for context, seconds in _read(path, lines, users, outcomes).items():
            spent[context] = max(spent[context], seconds)
    used = collections.defaultdict(set)
    for context, context_users in users.items():
        for user in context_users:
            used[user].add(context)
    passed = [test for test, outcome in outcomes.items() if outcome == "passed"]
    part = set(facts.get("tests", passed))
    own = {test: spent[test] for test in passed if test in part}
    shared = {test: frozenset(_reached(test, used) - {test}) for test in own}
    return Suite(facts["checkout"], facts["fingerprint"], facts["backend"], own, shared, spent, lines, users)


def divide(folder, parts):
    """Divides a trace into several traces.

    Args:
        folder: Folder of the trace.
        parts: {suffix: tests}. The trace of some tests is in a folder of this name with `-suffix` added.
    """
    facts = json.loads(pathlib.Path(folder, "suite.json").read_text())
    for suffix, tests in parts.items():
        part = pathlib.Path(f"{folder}-{suffix}")
        part.mkdir(parents=True, exist_ok=True)
        facts |= {"whole": str(pathlib.Path(folder).resolve()), "tests": sorted(tests)}
        pathlib.Path(part, "suite.json").write_text(json.dumps(facts, indent=1))


def _read(path, lines, users, outcomes):
    """Adds the record of one process. Returns {context: seconds}."""
    context, names, spent = "", {}, collections.Counter()
    for line in path.read_text().splitlines():
        word, _, rest = line.partition(" ")
        if word == "context":
            context = json.loads(rest)
        elif word == "spent":
            spent[context] += float(rest)
        elif word == "uses":
            users[json.loads(rest)].add(context)
        elif word == "file":
            number, _, name = rest.partition(" ")
            names[number] = json.loads(name)
        elif word == "test":
            outcomes[context] = json.loads(rest)
        else:
            lines[names[word]][int(rest)].add(context)
    return spent


def _reached(test, used):
    """A test and all contexts that it uses."""
    reached, pending = {test}, [test]
    while pending:
        new = used[pending.pop()] - reached
        reached |= new
        pending += new
    return reached
