"""The command that mutates inputs, and the processes that try the cases."""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

import numpy as np

from benchmarks import robustness
from benchmarks.robustness.image_cases import Images
from benchmarks.robustness.recipe_cases import Assignments, Configs, Records
from benchmarks.robustness.weight_cases import Cache, Cards, Pth, Settings, Weights
from benchmarks.workers import forget_peak_memory, peak_memory

MOST_SECONDS, MOST_BYTES, MOST_TIMES = 5, 64_000_000, 100
"""Limits for refusing a file of up to 10 MB: processor time, and bytes plus a multiple of the size of the file."""
KINDS = {
    "weights": (Weights, 5000),
    "settings": (Settings, 2000),
    "cards": (Cards, 1000),
    "pth": (Pth, 1000),
    "cache": (Cache, 1000),
    "images": (Images, 5000),
    "assignments": (Assignments, 10_000),
    "configs": (Configs, 5000),
    "records": (Records, 1000),
}
"""The class of each kind of input, and the default number of cases."""
_WARM_UP = 20
"""Number of first cases that are not measured. They import and compile code that later ones use."""


def parse(arguments):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.robustness", description=robustness.__doc__)
    for kind, (_, number) in KINDS.items():
        parser.add_argument(f"--{kind}", type=int, default=number, help="number of cases of this kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)  # Kind, folder, start, stop, step.
    return parser.parse_args(arguments)


def work(kind, folder, numbers, seed):
    """Tries cases. Prints a JSON object when a case begins, and another one with its outcome."""
    cases = KINDS[kind][0](folder)
    for warm_up in range(_WARM_UP):
        _outcome(cases, cases.make(np.random.default_rng([seed, 10**9 + warm_up])))
    for number in numbers:
        print(json.dumps({"number": number}), flush=True)
        print(json.dumps(_outcome(cases, cases.make(np.random.default_rng([seed, number])))), flush=True)


def _outcome(cases, made):
    """The outcome of a case: a dictionary of `outcome`, `seconds`, `bytes` and `problem`, which may be `None`."""
    case, size = made
    forget_peak_memory()
    before, begun = peak_memory(), time.process_time()
    problem = None
    try:
        outcome = "read" if cases.attempt(case) else "not read"
    except cases.documented as error:
        outcome = type(error).__name__
    except BaseException as error:
        outcome, problem = type(error).__name__, traceback.format_exc()[-2000:]
    seconds, used = time.process_time() - begun, peak_memory() - before
    if problem is None and outcome != "read" and (seconds > MOST_SECONDS or used > MOST_BYTES + MOST_TIMES * size):
        problem = f"an input of {size:,} bytes took {seconds:.1f} s and {used:,} bytes of memory"
    return {"outcome": outcome, "seconds": round(seconds, 2), "bytes": used, "problem": problem}


def share(kind, folder, first, options):
    """Tries one worker's share of the cases, from the `first`. After a crash a new process continues.

    Returns:
        [(number, outcome)]
    """
    outcomes, numbers = [], range(first, getattr(options, kind), options.workers)
    while numbers:
        command = [sys.executable, "-m", "benchmarks.robustness", "--seed", str(options.seed), "--worker", kind, folder]
        command += [str(numbers.start), str(numbers.stop), str(numbers.step)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}  # Decoders log each damaged image.
        with subprocess.Popen(command, **pipes, text=True) as process:
            begun = None
            for line in map(json.loads, process.stdout):
                begun, ended = (line["number"], None) if "number" in line else (None, begun)
                if ended is not None:
                    outcomes.append((ended, line))
        if begun is None:
            return outcomes
        outcomes.append((begun, {"outcome": "crash", "problem": f"the process ended with {process.returncode}"}))
        numbers = range(begun + numbers.step, numbers.stop, numbers.step)
    return outcomes


def try_all(kind, options):
    """Tries all cases of a kind. Returns [(number, outcome)]."""
    with tempfile.TemporaryDirectory() as work, concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
        folders = [pathlib.Path(work, str(index)) for index in range(options.workers)]
        for folder in folders:
            folder.mkdir()
            KINDS[kind][0].prepare(folder)
        jobs = [pool.submit(share, kind, str(folder), index, options) for index, folder in enumerate(folders)]
        return sorted((number, outcome) for job in jobs for number, outcome in job.result())


def main(arguments=None):
    """Returns the exit status of the process: 1 if there is a problem."""
    options = parse(arguments)
    if options.worker:
        kind, folder, *numbers = options.worker
        work(kind, folder, range(*map(int, numbers)), options.seed)
        return 0
    num_problems = 0
    for kind in KINDS:
        if not getattr(options, kind):
            continue
        begun, results = time.monotonic(), try_all(kind, options)
        outcomes = collections.Counter(case["outcome"] for _, case in results)
        summary = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.most_common())
        print(f"{len(results):,} {kind} in {time.monotonic() - begun:.0f} s: {summary}", flush=True)
        for number, case in results:
            if case["problem"]:
                num_problems += 1
                print(f"  {kind} {number} of seed {options.seed}: {case['problem']}", flush=True)
    return int(num_problems > 0)


if __name__ == "__main__":
    sys.exit(main())
