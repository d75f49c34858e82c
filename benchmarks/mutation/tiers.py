"""Chooses the default tier: the cheapest tests that execute every line that any test executes.

A set cover is computed greedily, by new lines per second of processor time. Then tests whose lines other chosen tests
execute too are dropped, the most expensive first. Tests that kill a mutant which the chosen tests miss are added.
"""

import collections
import heapq

_LEAST = 0.005
"""Smallest processor time of a test in seconds: pytest itself takes this long."""


class Cover:
    """The lines of each test of a suite, and what its tests cost together.

    Args:
        suite: `benchmarks.mutation.suites.Suite`
    """

    def __init__(self, suite):
        self.suite = suite
        self._own = collections.defaultdict(set)
        for path, by_line in suite.lines.items():
            for line, contexts in by_line.items():
                for context in contexts:
                    self._own[context].add((path, line))
        self.lines = {test: self._lines_of(test) for test in suite.own}
        self.all_lines = frozenset().union(*self.lines.values())

    def _lines_of(self, test):
        shared = (self._own[context] for context in self.suite.shared[test])
        return frozenset(self._own[test].union(*shared) - self._own[""])  # Imports run in every process.

    def price(self, test, made):
        """Processor time of a test if the contexts in `made` exist already."""
        shared = sum(self.suite.spent[context] for context in self.suite.shared[test] - made)
        return max(_LEAST, self.suite.own[test]) + shared

    def price_of(self, tests):
        """Processor time of tests that run together."""
        made, total = set(), 0.0
        for test in tests:
            total += self.price(test, made)
            made |= self.suite.shared[test]
        return total


def choose(suite, kept=(), covered=frozenset()):
    """The cheapest tests that execute every line that a test of the suite executes.

    Args:
        suite: `benchmarks.mutation.suites.Suite`
        kept: Tests that are chosen in any case.
        covered: Lines, as `(path, line)`, that need no test.

    Returns:
        {test: number of lines that it adds}, in the order in which they were chosen.
    """
    cover = Cover(suite)
    chosen, made, covered = {}, set(), set(covered)
    for test in kept:
        _add(test, cover, chosen, made, covered)
    queue = [(-_rate(test, cover, made, covered), test) for test in cover.lines]
    heapq.heapify(queue)
    while queue:
        _, test = heapq.heappop(queue)
        rate = _rate(test, cover, made, covered)
        if not rate or test in chosen:
            continue
        if queue and rate < -queue[0][0]:
            heapq.heappush(queue, (-rate, test))
            continue
        new = suite.shared[test] - made
        _add(test, cover, chosen, made, covered)
        for context in new:  # Tests that share what has been made become cheaper.
            for other in cover.suite.users.get(context, ()):
                if other in cover.lines and other not in chosen:
                    heapq.heappush(queue, (-_rate(other, cover, made, covered), other))
    return _without_superfluous(chosen, cover, set(kept))


def _rate(test, cover, made, covered):
    return len(cover.lines[test] - covered) / cover.price(test, made)


def _add(test, cover, chosen, made, covered):
    chosen[test] = len(cover.lines[test] - covered)
    covered |= cover.lines[test]
    made |= cover.suite.shared[test]


def _without_superfluous(chosen, cover, kept):
    """Drops tests whose new lines are executed by others, the most expensive first."""
    counts = collections.Counter(line for test in chosen for line in cover.lines[test])
    for test in sorted(chosen, key=lambda test: -cover.price(test, set())):
        if chosen[test] and test not in kept and all(counts[line] > 1 for line in cover.lines[test]):
            counts.subtract(cover.lines[test])
            del chosen[test]
    return chosen


def killers(rows):
    """The tests that killed mutants which the chosen tests had missed.

    Args:
        rows: Records of the command `run`, with the chosen tests as the new suite and the others as the old one.
    """
    return [run["killed_by"] for row in rows if row["status"] == "lost" for run in row["runs"] if run["killed_by"]]
