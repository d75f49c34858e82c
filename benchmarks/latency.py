"""Measures the latency of one ViT on CPUs: our SavedModel, KerasHub's, ONNX Runtime and OpenVINO.

Command: make bench-latency

All runtimes run the same ViT (default: B/16) with the same random weights and 1,000 classes. They take images of 224 x
224 pixels as a NumPy array and return probabilities as one. All compute in float32 with the same number of threads,
except the row for bfloat16. KerasHub's export is the one that its users get. It neither normalises pixels nor names
classes, so it is given normalised pixels. The row for encoded images also decodes JPEG files.

Each runtime has its own process. A cold load is measured in a fresh process, from the start of loading to the first
answer to one image, with the file in the system's cache. Imports are timed separately. Then all processes get the same
requests in turns, in a random order each round, so that other work on the machine affects all alike. The first request
of each batch size is not counted. An answer that differs from the Keras model's is an error.

A line of JSON for the starts of each row, and for each batch size, is added to benchmarks/results/latency.jsonl, with
device, commit and versions. --document also writes the tables into docs/performance/latency.md. Use a quiet machine.
"""

import argparse
import contextlib
import dataclasses
import importlib
import math
import multiprocessing
import os
import pathlib
import statistics
import sys
import tempfile
import time

import numpy as np

from benchmarks.contenders.served import OURS, ROWS, build, missing, prepare, read_inputs
from benchmarks.provenance import processor, provenance, versions_in_words
from benchmarks.records import add_options, append, put_between
from benchmarks.workers import peak_memory

MIN_ROUNDS = 3
_PAUSE = 0.05
"""Seconds between requests: threads of ONNX Runtime and OpenVINO wait actively for a while after one."""
_FIELDS = ("load", "memory", "imports")
_VERSIONS = ("keras", "tensorflow", "keras-hub", "onnxruntime", "openvino")
_NOTE = (
    'The columns "times ours" show the median, lowest and highest ratio of the rounds. For p99, the column '
    "shows one ratio for all rounds together. With fewer than 100 requests, p99 is the slowest request."
)


@dataclasses.dataclass(frozen=True)
class Start:
    """The time and memory of a process until its first answer.

    Args:
        imports: Seconds to import the runtime's package.
        load: Seconds from the end of the imports to the first answer to one image.
        memory: Peak memory of the process until then, in MB.
    """

    imports: float
    load: float
    memory: float


class Process:
    """A separate process that runs one row. Its answers are compared with the Keras model's.

    Args:
        row: A `Row`.
        folder: Folder that `prepare` wrote.
        threads: Number of threads to compute with.
    """

    def __init__(self, row, folder, threads):
        self.row = row
        self._expected = read_inputs(folder, "probabilities")
        self._pipe, child_end = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_answer_requests, args=(child_end, row, folder, threads), daemon=True)
        self._process.start()
        child_end.close()
        self.start = self._checked(1)

    def ask(self, batch_size):
        """Seconds of a request with `batch_size` images."""
        self._pipe.send(batch_size)
        return self._checked(batch_size)

    def _checked(self, batch_size):
        try:
            measured, answer = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"{self.row.title}: the process died; its error is above.") from None
        difference = np.abs(answer - self._expected[:batch_size]).max()
        if not difference <= self.row.tolerance:
            raise ValueError(
                f"{self.row.title} answers differently from the Keras model. Received: a probability that differs by "
                f"{difference:.1e}, at batch size {batch_size}; at most {self.row.tolerance:.0e} is allowed."
            )
        return measured

    def close(self):
        """Ends the process."""
        self._process.terminate()
        self._process.join()
        self._pipe.close()


def _answer_requests(pipe, row, folder, threads):
    """Runs in a `Process`: sends its start with the first answer, then answers batch sizes with seconds."""
    images = read_inputs(folder, row.takes)
    started = time.perf_counter()
    importlib.import_module(next(iter(row.packages)))
    imported = time.perf_counter()
    answer = row.open(str(folder / row.file), threads)
    first = answer(images[:1])
    pipe.send((Start(imported - started, time.perf_counter() - imported, peak_memory() / 1e6), first))
    while True:
        batch = images[: pipe.recv()]
        started = time.perf_counter()
        answered = answer(batch)
        pipe.send((time.perf_counter() - started, answered))


def cold_loads(names, folder, threads, rounds):
    """{row: [`Start` of each round]}. Each start is a fresh process."""
    starts = {name: [] for name in names}
    for name in [*names] * rounds:
        with contextlib.closing(Process(ROWS[name], folder, threads)) as process:
            starts[name].append(process.start)
    return starts


def latencies(names, folder, threads, batch_sizes, rounds):
    """{batch size: {row: [seconds of each round]}}. In each round each process gets one request."""
    seconds, rng = {}, np.random.default_rng(0)
    with contextlib.ExitStack() as stack:
        processes = {}
        for name in names:
            processes[name] = stack.enter_context(contextlib.closing(Process(ROWS[name], folder, threads)))
        for batch_size in batch_sizes:
            for process in processes.values():
                process.ask(batch_size)
            seconds[batch_size] = {name: [] for name in names}
            for _ in range(max(MIN_ROUNDS, rounds // batch_size)):
                # In a random order, so that no process always follows the same one.
                for name in rng.permutation(names):
                    time.sleep(_PAUSE)
                    seconds[batch_size][name].append(processes[name].ask(batch_size))
    return seconds


def percentile(values, percent):
    """The lowest value that at least `percent` of the values do not exceed, without interpolation."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def cold_table(starts):
    """Markdown: medians, and ratios to ours."""
    lines = [
        "| cold load | seconds | times ours | peak memory, MB | times ours | import, seconds |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    values = [{name: [getattr(start, field) for start in starts[name]] for name in starts} for field in _FIELDS]
    loads, memory, _ = values
    for name in starts:
        seconds, megabytes, imported = (statistics.median(by_row[name]) for by_row in values)
        cells = [f"{seconds:.2f}", _times_ours(loads, name), f"{megabytes:,.0f}", _times_ours(memory, name)]
        lines.append(f"| {ROWS[name].title} | {' | '.join(cells)} | {imported:.2f} |")
    return "\n".join(lines)


def latency_table(results):
    """Markdown: percentiles, and ratios to ours: of p50 round by round, of p99 overall."""
    lines = [
        "| latency | batch | requests | p50, ms | times ours | p99, ms | times ours |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for batch_size, seconds in results.items():
        for name, values in seconds.items():
            p50, p99 = (percentile(values, percent) for percent in (50, 99))
            cells = [str(batch_size), str(len(values)), f"{1000 * p50:,.1f}", _times_ours(seconds, name)]
            cells += [f"{1000 * p99:,.1f}", f"{p99 / percentile(seconds[OURS], 99):.2f}"]
            lines.append(f"| {ROWS[name].title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _times_ours(values, name):
    """Median, lowest and highest ratio of one row to ours, round by round."""
    if name == OURS:
        return "1"
    ratios = [one / two for one, two in zip(values[name], values[OURS], strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def rows_of_starts(starts):
    """The lines of the results from `cold_loads`: medians, in seconds and MB."""
    return [
        {"row": name, "starts": len(own_starts)}
        | {field: round(statistics.median(getattr(start, field) for start in own_starts), 3) for field in _FIELDS}
        for name, own_starts in starts.items()
    ]


def rows_of_requests(results):
    """The lines of the results from `latencies`: percentiles, in seconds."""
    return [
        {"row": name, "batch_size": batch_size, "requests": len(values)}
        | {f"p{percent}": round(percentile(values, percent), 5) for percent in (50, 99)}
        for batch_size, seconds in results.items()
        for name, values in seconds.items()
    ]


def main(arguments=None):
    """Measures, prints and saves the results. Returns the exit status of the process."""
    options = _parse(arguments)
    absent = missing({OURS, *options.rows})
    for name, extra in absent.items():
        print(f"{ROWS[name].title} is missing. Install it with: pip install '.[{extra}]'")
    if OURS in absent:
        return 1
    names = [name for name in ROWS if name == OURS or (name in options.rows and name not in absent)]
    common = {"model": options.variant, "threads": options.threads, "device": processor()}
    common |= provenance()  # Measuring takes long, and the code may change meanwhile, so this is read first.
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        prepare(build(options.variant), folder, names, options.batches)
        heading = (
            f"ViT-{options.variant}, {options.threads} threads; {processor()}; {versions_in_words(_VERSIONS)}. {_NOTE}"
        )
        print(f"{heading}\n")
        starts = cold_loads(names, folder, options.threads, options.cold_rounds)
        append([common | row for row in rows_of_starts(starts)], options.results)
        loads = cold_table(starts)
        print(f"{loads}\n", flush=True)
        results = latencies(names, folder, options.threads, options.batches, options.rounds)
    append([common | row for row in rows_of_requests(results)], options.results)
    requests = latency_table(results)
    print(requests)
    if options.document:
        put_between("bench-latency", f"{heading}\n\n{loads}\n\n{requests}\n")
    return 0


def _parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="B/16", help="a variant of keras_vit.ViT")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="runtimes to compare with ours")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32], help="numbers of images in a request")
    parser.add_argument(
        "--rounds",
        type=int,
        default=40,
        help=f"number of requests of one image; for N images, this number / N, but at least {MIN_ROUNDS}",
    )
    parser.add_argument("--cold-rounds", type=int, default=3, help="number of cold loads of each row")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="number of threads of each runtime")
    add_options(parser, "bench-latency", "latency")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
