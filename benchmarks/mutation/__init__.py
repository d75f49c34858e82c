"""Mutation testing: whether the tests notice small mistakes in the library, and which of two suites notices them.

    python -m benchmarks.mutation draw --count 300 --seed 0
    python -m benchmarks.mutation trace mutation/new -- -n 2 --dist loadfile
    python -m benchmarks.mutation trace mutation/old --checkout ../baseline -- -n 2 --dist loadfile
    python -m benchmarks.mutation run --new mutation/new --old mutation/old
    python -m benchmarks.mutation report --document

A mutant is the source with one small change: a number, a comparison, an operator, an argument, a returned value, a
deleted statement. `trace` runs a suite once and records which tests execute which lines. `run` gives every mutant to
the tests of the new suite that execute its line, cheapest first; a mutant that survives is given to the old suite. A
test that fails counts only if it passes on the unchanged library in the same way. Both take the tests of a budget of
processor time; `report` says how many mutants that no test caught were given to a part of their tests.

No published tool does this: mutmut 3 leaves out what runs at import, default arguments and decorated functions, and
cosmic-ray runs one command for every mutant; neither takes the tests from a record of lines, or compares two suites.
"""
