"""Measures how much longer the first training step takes than later ones, and where the time goes.

Command: make bench-first-step ARGS="--models S/16 L/16 --document"

Each model is trained with AdamW on TensorFlow, once as this package builds it and once as a plain `keras.Model` of the
same layers. Every measurement runs in a new process, and the two kinds take turns. Keras and TensorFlow are timed from
inside, without a profiler, because a profiler would slow down Python but not TensorFlow. The parts of the difference
between the first step and the median of later steps are:

* forward, gradients, optimizer: Python adds the operations of the model, of its gradients and of AdamW to a graph
* rest of tracing: Keras and TensorFlow turn this graph into a function, and create variables
* graph optimization: the passes of TensorFlow's Grappler, as reported in its log
* rest of the first run: TensorFlow places and creates the kernels, and allocates memory

A line of JSON for each measurement is added to benchmarks/results/first_step.jsonl. --document writes the medians into
docs/performance/first_step.md. Use a quiet machine.
"""

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import time

from benchmarks.contenders.keras_models import build_ours, open_keras
from benchmarks.provenance import device, provenance, versions_in_words
from benchmarks.records import add_options, append, markdown_table, newest, put_between, read
from benchmarks.workers import Job

KINDS = {"ours": "keras_vit's model", "plain": "`keras.Model` of the same layers"}
PARTS = ("forward", "gradients", "optimizer", "rest of tracing", "graph optimization", "rest of the first run")
KEYS = ("model", "size", "batch_size", "kind", "device")
"""Keys that identify the lines of a measurement, besides its time."""
LATER_STEPS = 3
_PASS = re.compile(r"meta_optimizer\.cc.* time = ([\d.]+)ms")


class _Stopwatch:
    """Adds up the seconds spent in functions. A function that another one calls is not counted twice."""

    def __init__(self):
        self.seconds, self.calls, self._inner = {}, {}, [0.0]

    def wrap(self, owner, name, part):
        """Replaces a method of a class or an object by one that is timed."""
        method = getattr(owner, name)

        def timed(*arguments, **options):
            begun = time.perf_counter()
            self._inner.append(0.0)
            try:
                return method(*arguments, **options)
            finally:
                seconds = time.perf_counter() - begun
                self.seconds[part] = self.seconds.get(part, 0.0) + seconds - self._inner.pop()
                self.calls[part] = self.calls.get(part, 0) + 1
                self._inner[-1] += seconds

        setattr(owner, name, timed)


def measure_here(model, size, batch_size, kind):
    """Trains a model in this process. Returns the seconds of the steps and of the parts of the first, as a dictionary.
    The passes of Grappler are still part of the first run."""
    import keras
    import tensorflow as tf
    from tensorflow.python.eager import context

    built = []

    def build(job):
        model = build_ours(job)
        built.append(model if kind == "ours" else keras.Model(model.inputs[0], model.outputs[0]))
        return built[-1]

    make_steps, _ = open_keras(Job(model, size, "train"), build, "tensorflow")
    watch = _Stopwatch()
    for owner, name, part in (
        (built[0], "train_step", "train step"),
        (built[0], "call", "forward"),
        (tf.GradientTape, "gradient", "gradients"),
        (built[0].optimizer, "apply", "optimizer"),
        (context.Context, "call_function", "run"),
    ):
        watch.wrap(owner, name, part)
    seconds = []
    for _ in range(1 + LATER_STEPS):
        begun = time.perf_counter()
        make_steps(batch_size, 1)
        seconds.append(time.perf_counter() - begun)
        if len(seconds) == 1:
            parts, traces = dict(watch.seconds), watch.calls["train step"]
    later = statistics.median(seconds[1:])
    run = parts["run"] - later
    parts = {part: parts.get(part, 0.0) for part in PARTS[:3]}
    rest = seconds[0] - later - run - sum(parts.values())
    parts |= {"rest of tracing": rest, "rest of the first run": run}
    return {"first": seconds[0], "later": later, "traces": traces, "parts": parts}


def measure(model, size, batch_size, kind):
    """Same as `measure_here`, in a new process, with the passes of Grappler as a part of their own."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "meta_optimizer=1"}
    command = [sys.executable, "-m", "benchmarks.first_step", "--in-this-process", model, str(size), str(batch_size)]
    done = subprocess.run([*command, kind], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} {kind} failed:\n{done.stderr}")
    result = json.loads(done.stdout.splitlines()[-1])
    passes = grappler_seconds(done.stderr)
    result["parts"]["graph optimization"] = passes
    result["parts"]["rest of the first run"] -= passes
    return result


def grappler_seconds(log):
    """The seconds of all of Grappler's passes in a log of TensorFlow."""
    return sum(float(match) for match in _PASS.findall(log)) / 1000


def table(rows):
    """Markdown: a line for each model and kind, with medians over the rounds and shares of the difference."""
    columns = ["model", "kind", "traces", "first step, s", "later steps, s", "difference, s", *PARTS]
    lines = []
    for key in dict.fromkeys(tuple(row[name] for name in KEYS) for row in rows):
        rounds = [row for row in rows if tuple(row[name] for name in KEYS) == key]
        first, later = (statistics.median(row[name] for row in rounds) for name in ("first", "later"))
        difference = statistics.median(row["first"] - row["later"] for row in rounds)
        shares = [
            statistics.median(row["parts"][part] / (row["first"] - row["later"]) for row in rounds) for part in PARTS
        ]
        cells = [key[0], KINDS[key[3]], rounds[0]["traces"], f"{first:.1f}", f"{later:.2f}", f"{difference:.1f}"]
        lines.append([*cells, *(f"{share:.0%}".replace("%", " %") for share in shares)])
    return markdown_table(columns, lines, right=columns[2:])


def main(arguments=None):
    """Measures, prints and saves the results. Returns the exit status of the process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--models", nargs="*", default=["S/16", "L/16"], help="variants, or functions such as BiTResNet50x1")
    add("--size", type=int, default=224, help="side of the images in pixels")
    add("--batch-size", type=int, default=8)
    add("--rounds", type=int, default=3, help="measurements of each model and kind")
    add("--in-this-process", nargs=4, metavar=("MODEL", "SIZE", "BATCH", "KIND"), help=argparse.SUPPRESS)
    add_options(parser, "bench-first-step", "first_step")
    options = parser.parse_args(arguments)
    if options.in_this_process:
        model, size, batch_size, kind = options.in_this_process
        with contextlib.redirect_stdout(sys.stderr):
            result = measure_here(model, int(size), int(batch_size), kind)
        print(json.dumps(result))
        return 0
    for model in options.models:
        state, rows = provenance(), []
        for _ in range(options.rounds):
            for kind in KINDS:
                job = {"model": model, "size": options.size, "batch_size": options.batch_size, "kind": kind}
                rows.append(job | {"device": device()} | measure(**job) | state)
        append(rows, options.results)
        print(f"{table(rows)}\n", flush=True)
    if options.document:
        rows = newest(read(options.results), KEYS)
        put_between("bench-first-step", f"{device()}; {versions_in_words(('keras', 'tensorflow'))}:\n\n{table(rows)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
