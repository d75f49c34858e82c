"""The command of the mutation of inputs, and the processes that try the cases."""

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
from benchmarks.robustness.cases import KINDS
from benchmarks.workers import forget_peak_memory, peak_memory

MOST_SECONDS, MOST_BYTES, MOST_TIMES = 5, 64_000_000, 100
"""A refusal of a file of up to 10 MB takes so much processor time, and so many bytes beside so many times its size."""
_WARM_UP = 20
"""Cases that are tried first and not measured: they import and compile what later ones use."""


def parse(arguments):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.robustness", description=robustness.__doc__)
    for kind, number in (("weights", 5000), ("images", 5000), ("assignments", 10_000)):
        parser.add_argument(f"--{kind}", type=int, default=number, help="cases of this kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)  # Kind, folder, start, stop, step.
    return parser.parse_args(arguments)


def work(kind, folder, numbers, seed):
    """Tries cases; prints a JSON object for each that begins, and for what came of it."""
    cases = KINDS[kind](folder)
    for warm_up in range(_WARM_UP):
        _outcome(cases, cases.make(np.random.default_rng([seed, 10**9 + warm_up])))
    for number in numbers:
        print(json.dumps({"number": number}), flush=True)
        print(json.dumps(_outcome(cases, cases.make(np.random.default_rng([seed, number])))), flush=True)


def _outcome(cases, made):
    """What came of a case: `outcome`, `seconds`, `bytes`, and `problem` if it is one."""
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
        problem = f"{size:,} bytes cost {seconds:.1f} s and {used:,} bytes"
    return {"outcome": outcome, "seconds": round(seconds, 2), "bytes": used, "problem": problem}


def share(kind, folder, first, options):
    """Tries one worker's share of the cases, from the `first`; a crash ends its process, and another goes on.

    Returns:
        [(number, what came of it)]
    """
    found, numbers = [], range(first, getattr(options, kind), options.workers)
    while numbers:
        command = [sys.executable, "-m", "benchmarks.robustness", "--seed", str(options.seed), "--worker", kind, folder]
        command += [str(numbers.start), str(numbers.stop), str(numbers.step)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}  # Decoders complain of each damaged image.
        with subprocess.Popen(command, **pipes, text=True) as process:
            begun = None
            for line in map(json.loads, process.stdout):
                begun, ended = (line["number"], None) if "number" in line else (None, begun)
                if ended is not None:
                    found.append((ended, line))
        if begun is None:
            return found
        found.append((begun, {"outcome": "crash", "problem": f"the process ended with {process.returncode}"}))
        numbers = range(begun + numbers.step, numbers.stop, numbers.step)
    return found


def try_all(kind, options):
    """Tries all cases of a kind; returns [(number, what came of it)]."""
    with tempfile.TemporaryDirectory() as work, concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
        folders = [pathlib.Path(work, str(index)) for index in range(options.workers)]
        for folder in folders:
            folder.mkdir()
            KINDS[kind].prepare(folder)
        jobs = [pool.submit(share, kind, str(folder), index, options) for index, folder in enumerate(folders)]
        return sorted((number, found) for job in jobs for number, found in job.result())


def main(arguments=None):
    """Returns the process's exit status: 1 if there is a problem."""
    options = parse(arguments)
    if options.worker:
        kind, folder, *numbers = options.worker
        work(kind, folder, range(*map(int, numbers)), options.seed)
        return 0
    num_problems = 0
    for kind in KINDS:
        begun, results = time.monotonic(), try_all(kind, options)
        outcomes = collections.Counter(found["outcome"] for _, found in results)
        summary = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.most_common())
        print(f"{len(results):,} {kind} in {time.monotonic() - begun:.0f} s: {summary}", flush=True)
        for number, found in results:
            if found["problem"]:
                num_problems += 1
                print(f"  {kind} {number} of seed {options.seed}: {found['problem']}", flush=True)
    return int(num_problems > 0)


if __name__ == "__main__":
    sys.exit(main())
