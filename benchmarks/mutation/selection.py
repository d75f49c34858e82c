"""Selects the tests for a mutant, and their order."""

import ast
import collections
import functools
import pathlib
import re
import threading

from benchmarks.mutation.drawing import PACKAGES, places

_SECONDS_LIMITS = (0.3, 2.0, 8.0)
"""Tests below a limit run before those above it."""
_FIRST_CASES = 4
"""Cases of a parametrised test that run with the tests of the same cost. The others run after the next group."""


class Library:
    """The names in the source of the library, and the statements that read them.

    Args:
        root: Folder of the checkout.
    """

    def __init__(self, root):
        self._lines = collections.defaultdict(set)  # {name: {(path, line of a statement that reads it when called)}}
        self._tables = collections.defaultdict(set)  # {name: names that are defined from it at import}
        self._importers = collections.defaultdict(set)  # {module: paths of the modules that import it}
        for package in PACKAGES:
            for path in sorted(pathlib.Path(root, package).rglob("*.py")):
                self._read(ast.parse(path.read_bytes()), str(path.relative_to(root)))

    def _read(self, tree, path):
        for place, node in places(tree):
            name = getattr(node, "id", None) or getattr(node, "attr", None)
            if name and place.runs == "imported":
                self._tables[name] |= names_of(place.function)
            elif name:
                end = place.end_statement if place.runs == "defined" else place.statement
                self._lines[name] |= {(path, line) for line in range(place.statement, end + 1)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._importers[alias.name].add(path)
            elif isinstance(node, ast.ImportFrom) and node.module:
                self._importers[node.module].add(path)
                for alias in node.names:
                    self._importers[f"{node.module}.{alias.name}"].add(path)

    def importers(self, path):
        """Modules that import the module at `path`."""
        return self._importers[path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")]

    def defined_with(self, names, depth=3):
        """The names, and the names of tables and classes that are built from them at import."""
        for _ in range(depth):
            names = names.union(*(self._tables[name] for name in names))
        return names

    def readers(self, names, home):
        """{path: lines of statements that read a name}. Private names are only read in their module, `home`."""
        lines = collections.defaultdict(set)
        for name in names:
            for path, line in self._lines[name]:
                if path == home or not name.startswith("_"):
                    lines[path].add(line)
        return lines


def names_of(function):
    """Names that a statement defines at import: the names it assigns, or the class it is in."""
    if function.startswith("module:"):
        return {name for name in function.removeprefix("module:").split(",") if name}
    return {function.split(".")[0]}


class Selector:
    """Chooses tests of a suite.

    Args:
        suite: `benchmarks.mutation.suites.Suite`
        library: `Library`, the same for all suites.
    """

    def __init__(self, suite, library):
        self.suite, self._library, self._lock = suite, library, threading.Lock()

    def choose(self, mutant, budget, lateness=None):
        """The tests for a mutant.

        The first ones execute its statement, or the function if the mutant is in a `def`. Tests that share a fixture
        with them come next. A statement that runs at import has no test of its own. Its mutants are tested with test
        files that contain the names that it defines and with tests that execute statements which read these names, then
        with tests of the module and of modules that import it. If no test executes the statement, the tests of the
        module are used, because the record may be incomplete.

        Args:
            mutant: `benchmarks.mutation.drawing.Mutant`
            budget: Processor time of all tests together, in seconds.
            lateness: {test: rank}. Tests of a higher rank come later, before any other criterion.

        Returns:
            (ordered tests, number of tests beyond the budget, whether a test executes the statement)
        """
        with self._lock:  # The suite caches its look-ups.
            groups, module_tests = self._groups(mutant), self._module_tests(mutant.path)
        if not (is_covered := bool(groups[0])):
            groups, budget = [module_tests], budget / 4
        ranks = {}
        for rank, group in enumerate(groups):
            for test in group:
                ranks.setdefault(test, rank)
        ordered = self._order(ranks, mutant, lateness or {})
        tests = self.suite.within(ordered, budget)
        return tests, len(ordered) - len(tests), is_covered

    def _groups(self, mutant):
        suite, lines = self.suite, range(mutant.statement, mutant.end_statement + 1)
        if mutant.runs != "imported":
            lines = lines[:1] if mutant.runs == "called" else lines
            groups = list(suite.tests_at(mutant.path, lines))
            if not suite.runs_at_import(mutant.path, mutant.statement):
                return groups
            first, *rest = self._at_import(mutant)
            return [groups[0] | first, groups[1], *rest]
        return self._at_import(mutant)

    def _at_import(self, mutant):
        names = self._library.defined_with(names_of(mutant.function))
        readers = self._library.readers(names, mutant.path)
        reading = set().union(*(self.suite.tests_at(path, lines)[0] for path, lines in readers.items()))
        naming = {test for test in self.suite.seconds if self._names_one(_file(test), frozenset(names))}
        importing = (self._module_tests(path) for path in self._library.importers(mutant.path))
        module_tests = self._module_tests(mutant.path)
        return [naming | reading or module_tests, module_tests, set().union(*importing)]

    @functools.cache  # noqa: B019 - lives as long as the selector.
    def _module_tests(self, path):
        return self.suite.tests_at(path, self.suite.lines.get(path, {}))[0]

    @functools.cache  # noqa: B019 - lives as long as the selector.
    def _names_one(self, file, names):
        path = pathlib.Path(self.suite.checkout, file)
        words = set(re.findall(r"\w+", path.read_text())) if path.is_file() else set()
        return not names.isdisjoint(words)

    def _order(self, ranks, mutant, lateness):
        """Sorts by group and cost, then tests named after the module first, then by file, to make its fixtures once."""
        words = {pathlib.PurePath(mutant.path).stem, *(names_of(mutant.function) if mutant.runs == "imported" else ())}
        cases = collections.Counter()
        keys, seconds = {}, self.suite.seconds
        for test in sorted(ranks, key=seconds.get):
            group = sum(seconds[test] > limit for limit in _SECONDS_LIMITS)
            function = test.partition("[")[0]
            cases[function] += 1
            late = cases[function] > _FIRST_CASES
            other = not any(word in test for word in words)
            keys[test] = (lateness.get(test, 0), ranks[test], group + late, other, _file(test), seconds[test], test)
        return sorted(keys, key=keys.get)


def _file(test):
    return test.partition("::")[0]
