"""Mutation testing: whether the tests detect small mistakes in the library, and which of two suites detects them.

    python -m benchmarks.mutation draw --count 300 --seed 0
    python -m benchmarks.mutation trace mutation/new -- -n 2 --dist loadfile
    python -m benchmarks.mutation trace mutation/old --checkout ../baseline -- -n 2 --dist loadfile
    python -m benchmarks.mutation run --new mutation/new --old mutation/old
    python -m benchmarks.mutation report --document

A mutant is the source with one small change: a number, a comparison, an operator, an argument, a returned value, a
deleted statement. `trace` runs a suite once and records which tests execute which lines. `run` tests every mutant with
the tests of the new suite that execute its line, cheapest first. A mutant that survives is tested with the old suite. A
failing test counts only if it passes on the unchanged library in the same way. Each suite has a budget of processor
time. `report` shows how many mutants that no test caught were tested with a part of their tests only.

No published tool does this. mutmut 3 skips code that runs at import, default arguments and decorated functions.
cosmic-ray runs one command for every mutant. Neither selects tests by executed lines, or compares two suites.
"""
