"""Mutants are small, reproducible code changes, and each is run with the tests that execute its code."""

import ast
import collections
import os
import subprocess
import sys
import textwrap

import pytest

from benchmarks.mutation import suites
from benchmarks.mutation.changes import KINDS
from benchmarks.mutation.drawing import MOST_OF_FUNCTION, candidates, changes_syntax_tree, draw
from benchmarks.mutation.selection import Library, Selector
from benchmarks.mutation.suites import Suite
from benchmarks.mutation.tiers import choose

pytestmark = pytest.mark.slow

SOURCE = textwrap.dedent('''\
    """A docstring with 1 < 2."""

    __all__ = ["area"][:1]
    SIZES = {"é": (3, 4.0)}


    def area(width: tuple[int, 5], scale=0.5, *, rounded=True):
        """Of 3 + 4."""
        if width < 0 and not rounded:
            raise ValueError(f"width must be {1 + 1} or more", 7)
        print("the area is", 6 * width)
        text = f"{width + 8}"
        width -= 2
        return max(
            width * scale,  # A comment.
            key=len,
        )


    class Box:
        sides: int = 6

        def volume(self):
            return -self.sides


    if __name__ == "__main__":
        area(9)
    ''').encode()


@pytest.fixture(scope="module")
def mutants():
    return [mutant for mutant in candidates(SOURCE, "keras_vit/box.py") if changes_syntax_tree(mutant, SOURCE)]


def test_every_kind_of_change(mutants):
    changes = collections.defaultdict(set)
    for mutant in mutants:
        changes[mutant.kind].add((mutant.before, mutant.after))
    assert changes.keys() == set(KINDS)
    assert changes["comparisons"] == {("<", "<="), ("<", ">=")}
    assert changes["booleans"] == {("and", "or"), ("not ", ""), ("True", "False")}
    assert changes["arithmetic"] == {("*", "/"), ("-=", "+="), ("-", "")}
    assert changes["tables"] == {("3", "4"), ("3", "2"), ("4.0", "8.0"), ("4.0", "2.0"), ("6", "7"), ("6", "5")}
    assert {after for before, after in changes["returns"]} == {"None"}
    assert ("width -= 2", "pass") in changes["statements"]
    assert any(before.startswith("raise ValueError(") for before, _ in changes["statements"])


def test_messages_docstrings_and_annotations_stay(mutants):
    numbers = {mutant.before for mutant in mutants if mutant.kind in ("numbers", "tables")}
    assert numbers == {"0", "0.5", "2", "3", "4.0", "6"}


def test_all_else_stays_where_it_is(mutants):
    for mutant in mutants:
        mutated = mutant.applied(SOURCE)
        assert mutated.count(b"\n") == SOURCE.count(b"\n")
        before, after = SOURCE.splitlines(), mutated.splitlines()
        changed = {n + 1 for n, lines in enumerate(zip(before, after, strict=True)) if lines[0] != lines[1]}
        assert changed <= set(range(mutant.line, mutant.end_line + 1)), mutant
        assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(SOURCE))
    with pytest.raises(ValueError, match="has changed"):
        mutants[0].applied(SOURCE + b"\n")


@pytest.fixture
def checkout(tmp_path):
    for package, source in (("keras_vit", SOURCE), ("training", b"from keras_vit.box import SIZES\n")):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / "box.py").write_bytes(source)
    return tmp_path


def test_draws_are_reproducible_and_balanced(checkout):
    first = draw(checkout, count=300, seed=0)
    assert draw(checkout, count=300, seed=0) == first
    assert draw(checkout, count=300, seed=1) != first
    counts = collections.Counter(mutant.function for mutant in first)
    assert max(counts.values()) == MOST_OF_FUNCTION
    assert len({mutant.kind for mutant in first}) >= 4
    assert len({mutant.id for mutant in first}) == len(first)


_PROGRAM = """
import functools, sys
sys.path.insert(0, {startup!r})
import sitecustomize

sitecustomize.recorder.enter("tests/box_test.py::test_area")
from keras_vit.box import Box, area

def built():
    return Box().volume()

built.__module__ = "tests.box_test"
built = functools.cache(built)
built()
sitecustomize.recorder.write('test "passed"')
sitecustomize.recorder.leave()
sitecustomize.recorder.enter("tests/box_test.py::test_box")
built()
sitecustomize.recorder.write('test "passed"')
sitecustomize.recorder.leave()
"""


@pytest.fixture
def suite(checkout):
    """The trace of a process that executes a line in a cached function and uses the cached result twice."""
    folder = checkout / "trace"
    (folder / "lines").mkdir(parents=True)
    facts = f'{{"checkout": "{checkout}", "fingerprint": "", "backend": "tensorflow"}}'
    (folder / "suite.json").write_text(facts)
    variables = {"MUTATION_ROOT": str(checkout), "MUTATION_TRACE": str(folder / "lines")}
    program = _PROGRAM.format(startup=str(suites._STARTUP))
    subprocess.run([sys.executable, "-S", "-c", program], env=os.environ | variables, cwd="/", check=True)
    return suites.read_suite(folder)


def test_tests_that_execute_a_line_or_use_what_did(suite, checkout, mutants):
    tests = {"tests/box_test.py::test_area", "tests/box_test.py::test_box"}
    selector = Selector(suite, Library(checkout))
    chosen = {
        mutant.before: selector.choose(mutant, budget=100)
        for mutant in mutants
        if mutant.before in ("-", "<", "3") or mutant.function == "Box"
    }
    assert suite.lines["keras_vit/box.py"].keys() == {24}
    assert (set(chosen["-"][0]), chosen["-"][2]) == (tests, True)
    assert (set(chosen["<"][0]), chosen["<"][2]) == (tests, False)  # The module's tests: none executes the line.
    assert set(chosen["6"][0]) == tests


def test_what_tests_share_costs_once():
    tests = {name: frozenset({"fixture"}) for name in "abc"}
    lines = {"keras_vit/box.py": {1: set("abc")}}
    suite = suites.Suite("", "", "tensorflow", dict.fromkeys("abc", 1.0), tests, {"fixture": 5.0}, lines, {})
    assert suite.seconds == dict.fromkeys("abc", 6.0)
    assert suite.cost(["a", "b"]) == 7.0
    assert suite.within(["a", "b", "c"], 7.5) == ["a", "b"]
    assert suite.within(["a", "b", "c"], 1.0) == ["a"]


def _suite(seconds, lines, shared=None, spent=None):
    """A suite in which each test executes some lines of a file, and shares the contexts in `shared`."""
    by_line, users = collections.defaultdict(set), collections.defaultdict(set)
    for context, executed in lines.items():
        for line in executed:
            by_line[line].add(context)
    shared = {test: frozenset((shared or {}).get(test, ())) for test in seconds}
    for test, contexts in shared.items():
        for context in contexts:
            users[context].add(test)
    return Suite("", "", "tensorflow", seconds, shared, spent or {}, {"box.py": by_line}, users)


def test_the_cheapest_tests_that_execute_every_line_are_chosen():
    seconds = {"whole": 5.0, "first": 1.0, "second": 1.0, "nothing new": 0.1}
    lines = {"": [9], "whole": [1, 2, 3, 9], "first": [1, 2], "second": [2, 3], "nothing new": [9]}
    suite = _suite(seconds, lines)
    assert choose(suite) == {"first": 2, "second": 1}
    assert choose(suite, kept=["whole"]) == {"whole": 3}
    assert choose(suite, covered={("box.py", 1)}) == {"second": 2}
