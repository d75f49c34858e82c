"""Tests mutants in copies of the checkouts. The tests run in forked processes, several at a time."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

from benchmarks.mutation.suites import copy_checkout, environment, pytest_options
from benchmarks.records import append, read

_SERVER = pathlib.Path(__file__).with_name("server.py")
_TIMEOUT, _TIMES = 60, 8
"""A batch of tests fails after `_TIMEOUT` seconds plus `_TIMES` times its processor time."""
_BATCHES = (4, 16, 64)
"""Processor time of the first batches, in seconds. Most mutants are killed in the first one."""


class Server:
    """A process that forks another one for each batch of tests. It starts with the first batch.

    Args:
        root: Copy of the checkout.
        backend: Backend of Keras.
        work: Folder for temporary files and logs.
        cache: Cache folder of pytest.
    """

    def __init__(self, root, backend, work, cache):
        self._root, self._backend, self._work, self._cache = root, backend, pathlib.Path(work), str(cache)
        self._process = None

    def _start(self):
        temporary = self._work / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        variables = environment(self._root, self._backend, self._cache) | {"TMPDIR": str(temporary)}
        log = (self._work / f"server-{self._backend}.log").open("w")
        command = [sys.executable, str(_SERVER), str(self._root)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
        self._process = subprocess.Popen(command, **pipes, cwd=self._work, env=variables, text=True)

    def ask(self, tests, timeout):
        """Runs tests. Returns the answer of `server.py`."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        log = str(self._work / f"tests-{self._backend}.log")
        request = {"tests": tests, "timeout": timeout, "options": pytest_options(self._cache), "log": log}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            log_end = (self._work / f"server-{self._backend}.log").read_text()[-1000:]
            raise RuntimeError(f"The process that runs the tests has ended: {log_end}")
        for path in (self._work / "tmp").iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        return json.loads(line)

    def close(self):
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait()


@contextlib.contextmanager
def mutated(root, mutant):
    """A context in which a copy of the checkout contains the mutant."""
    path = pathlib.Path(root, mutant.path)
    source = path.read_bytes()
    path.write_bytes(mutant.applied(source))
    try:
        yield
    finally:
        path.write_bytes(source)


class Controls:
    """Checks that tests are reliable: they pass on the unchanged library, run in the same way as with a mutant.

    Args:
        path: File that lists the unreliable tests of each suite. Tests that are found later are added to it.
    """

    def __init__(self, path):
        self._path, self._reliable, self._lock = pathlib.Path(path), set(), threading.Lock()
        known = read(path) if self._path.exists() else []
        self._unreliable = {(row["suite"], row["test"]) for row in known}

    def usable(self, suite, tests):
        """The tests that are not known to be unreliable, and whose files can be collected."""
        unreliable = {test for name, test in self._unreliable if name == suite.name}
        return [test for test in tests if unreliable.isdisjoint((test, test.partition("::")[0]))]

    def holds(self, suite, test, run):
        """Whether a test passes without a mutant. `run` runs it and returns the server's answer."""
        key = suite.name, test
        if key not in self._reliable:
            answer = run()
            with self._lock:
                if answer["failed"] is None:
                    self._reliable.add(key)
                else:
                    self._unreliable.add(key)
                    append([{"suite": suite.name, "test": test, "why": answer["why"]}], self._path)
        return key in self._reliable


class Worker:
    """Copies of the checkouts, and a server for each suite.

    Args:
        selectors: {"new" and "old": list of `benchmarks.mutation.selection.Selector`}
        budgets: {"new" and "old": processor time of the tests of one mutant in one suite, in seconds}
        controls: `Controls`, shared by all workers.
        work: Folder of this worker.
        cache: Cache folder of pytest, shared by all workers.
    """

    def __init__(self, selectors, budgets, controls, work, cache):
        self._selectors, self._budgets, self._controls = selectors, budgets, controls
        self._trees, self._servers = {}, {}
        for suite in (selector.suite for selector in selectors["new"] + selectors["old"]):
            if suite.checkout not in self._trees:
                self._trees[suite.checkout] = root = pathlib.Path(work, str(len(self._trees)), "tree")
                root.parent.mkdir(parents=True)
                copy_checkout(suite.checkout, root)
            root = self._trees[suite.checkout]
            self._servers[suite.checkout, suite.backend] = Server(root, suite.backend, root.parent, cache)

    def close(self):
        for server in self._servers.values():
            server.close()

    def examine(self, mutant):
        """The record of a mutant: its fields, `status`, `seconds`, and the run of each suite.

        A mutant is `killed` by the new suite, `lost` if only the old suite kills it, `survived` if neither does, or
        `not covered` if no test of either suite executes its line.
        """
        begun, status, runs = time.monotonic(), None, []
        for age, killed in (("new", "killed"), ("old", "lost")):
            for selector in self._selectors[age]:
                if status is None:
                    runs.append(self._test(mutant, selector, age, runs))
                    status = killed if runs[-1].killed_by else None
        status = status or ("survived" if any(run.is_covered for run in runs) else "not covered")
        record = dataclasses.asdict(mutant) | {"status": status, "seconds": round(time.monotonic() - begun, 1)}
        return record | {"runs": [run.record() for run in runs]}

    def _test(self, mutant, selector, age, earlier):
        """Tests the mutant with a suite, batch by batch until a test fails. Returns a `Run`."""
        suite = selector.suite
        tests, left_out, is_covered = selector.choose(mutant, self._budgets[age], self._lateness(suite, age, earlier))
        run, limits = Run(suite, age, is_covered, left_out), iter(_BATCHES)
        while (pending := self._controls.usable(suite, tests)) and not run.killed_by:
            batch = first_batch(suite, pending, next(limits, math.inf))
            if self._settles(mutant, batch, run):
                tests = pending[len(batch) :]
        return run

    def _lateness(self, suite, age, earlier):
        """{test of an old suite: 1 if a new suite has a test of this name, 2 if that passed in an identical file}"""
        ranks = {}
        for selector in self._selectors["new"] if age == "old" else []:
            if selector.suite.backend == suite.backend:
                ranks |= dict.fromkeys(selector.suite.seconds, 1)
        for run in earlier if age == "old" else []:
            if run.suite.backend == suite.backend:
                roots = self._trees[suite.checkout], self._trees[run.suite.checkout]
                ranks |= {test: 2 for test in run.passed if same_file(*roots, test.partition("::")[0])}
        return ranks

    def _settles(self, mutant, batch, run):
        """Tests the mutant with a batch. Returns `False` if the batch must run again without an unreliable test."""
        server, root = self._servers[run.suite.checkout, run.suite.backend], self._trees[run.suite.checkout]
        timeout = _TIMEOUT + _TIMES * run.suite.cost(batch)
        with mutated(root, mutant):
            answer = server.ask(batch, timeout)
        run.cpu += answer["cpu"]
        failed = answer["failed"]
        if failed is None:
            run.passed |= set(batch)
            return True
        again = batch[: batch.index(failed) + 1] if failed in batch else batch
        if self._controls.holds(run.suite, failed, lambda: server.ask(again, timeout)):
            run.killed_by, run.why = failed, answer["why"]
            return True
        if self._controls.usable(run.suite, batch) == batch:
            raise RuntimeError(f"Tests of {run.suite.name} fail on the unchanged library: {failed}, {answer['why']}")
        return False


@dataclasses.dataclass
class Run:
    """The result of a suite for a mutant."""

    suite: object
    age: str
    is_covered: bool
    left_out: int
    killed_by: str | None = None
    why: str | None = None
    passed: set = dataclasses.field(default_factory=set)
    cpu: float = 0.0

    def record(self):
        fields = {name: getattr(self, name) for name in ("age", "is_covered", "left_out", "killed_by")}
        fields["why"] = self.why and without_folders(self.why)
        return fields | {"suite": self.suite.name, "passed": len(self.passed), "cpu": round(self.cpu, 1)}


def without_folders(text):
    """A message with absolute paths replaced by the names of the files."""
    return re.sub(r"(?<![\w.])/(?:[\w.@+-]+/)+", "", text)


def first_batch(suite, tests, limit):
    """The first tests, before the one that would exceed a processor time of `limit` seconds."""
    kept = suite.within(tests, limit)
    return next(tests[:index] for index in range(len(kept), 0, -1) if tests[:index] == kept[:index])


def same_file(first, second, name):
    paths = [pathlib.Path(root, name) for root in (first, second)]
    return all(path.is_file() for path in paths) and paths[0].read_bytes() == paths[1].read_bytes()


def run(mutants, make_worker, num_workers, results, state):
    """Examines mutants. The record of each is added to a file immediately.

    Args:
        mutants: List of `Mutant`
        make_worker: Function that makes a `Worker` from its number.
        num_workers: Number of parallel workers.
        results: Path of the file of records.
        state: Dictionary that is added to each record.
    """
    pending = collections.deque(mutants)
    print(f"{len(mutants)} mutants will be examined.", flush=True)
    with concurrent.futures.ThreadPoolExecutor(num_workers) as pool:
        jobs = [
            pool.submit(_work, pending, functools.partial(make_worker, n), results, state) for n in range(num_workers)
        ]
        try:
            for job in concurrent.futures.as_completed(jobs):
                job.result()
        finally:  # After an error or an interrupt, the other workers only finish their present mutant.
            pending.clear()


def _work(pending, make_worker, results, state):
    worker = make_worker()
    try:
        while True:
            try:
                mutant = pending.popleft()
            except IndexError:
                return
            record = worker.examine(mutant) | state
            with _WRITING:
                append([record], results)
                place = f"{mutant.path}:{mutant.line} {mutant.kind}"
                print(f"{record['status']:<12} {record['seconds']:6.1f} s  {mutant.id}  {place}", flush=True)
    finally:
        worker.close()


_WRITING = threading.Lock()
