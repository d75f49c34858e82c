"""Trains the points of a study, and keeps their results."""

import contextlib
import dataclasses
import functools
import math
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import statistics
import typing

import keras

import keras_vit
from training import recipes
from training.data.pipeline import num_steps_per_epoch
from training.engine.models import build_model, without_weights
from training.engine.schedules import build_schedule, training_steps
from training.engine.stopping import sigterm_as_keyboard_interrupt
from training.engine.train import save_model, train_once
from training.errors import InputError
from training.planning.plan_report import training_flops
from training.recipe.assignments import override, read_run_info
from training.recipe.config import Recipe
from training.runs.folder import Run, add_result, load_model
from training.runs.provenance import processor, usable_cores
from training.studies import papers
from training.studies.page import write_page
from training.studies.results import Row, digest, read_rows, summaries, write_rows
from training.studies.study import Point
from training.tasks import TASKS

_ASSUMED_SPEED = 15e9
"""FLOPs per second of one core, if there is no result yet."""
_DPI = 200


@dataclasses.dataclass(frozen=True)
class Options:
    """How a study is run.

    Args:
        assignments: Changes to the recipe, `section.field=value`.
        recipe: Name of the recipe that replaces the recipe of the study, or `None`.
        runs: Folder of the runs. Studies that train the same recipe share its run.
        results: Folder of the results. A run with a result in this folder is not repeated, even if its folder is gone.
        seeds: Number of runs of each point.
        jobs: Number of runs that are trained at the same time, each on its share of the cores.
    """

    assignments: tuple[str, ...] = ()
    recipe: str | None = None
    runs: pathlib.Path = pathlib.Path("runs/studies")
    results: pathlib.Path = pathlib.Path("runs/studies")
    seeds: int = 1
    jobs: int = 1


@dataclasses.dataclass(frozen=True)
class Job:
    """A run of a study. `initial` is the job whose model gives the initial weights, or `None`."""

    point: Point
    recipe: Recipe
    run: Run
    initial: "Job | None" = None

    @property
    def key(self):
        """Identifies the recipe. It is the name of the run's folder."""
        return self.run.folder.name

    @property
    def trained_model(self):
        """The recipe's `model`. If the weights are those of another job: the architecture of that job."""
        if self.initial is None:
            return without_weights(self.recipe).model
        shape = self.recipe.model.input_shape
        model = self.initial.trained_model
        return model if shape is None else dataclasses.replace(model, input_shape=shape)

    def __str__(self):
        return f"{self.point}, seed {self.recipe.seed}"


class Experiment:
    """The runs of a study, of which some have results.

    Args:
        name: Name of the study.
        study: `training.studies.study.Study`
        options: `Options`

    Raises:
        InputError: If there is no such recipe, or the study cannot vary it.
    """

    def __init__(self, name, study, options):
        self.name, self.study, self.options = name, study, options
        self._cores = len(_shares(options.jobs)[0])
        recipe = override(recipes.load(options.recipe or study.recipe), () if options.recipe else study.changes)
        self.recipe = override(recipe, options.assignments)
        self.seeds = range(self.recipe.seed, self.recipe.seed + options.seeds)
        self.points, self.candidates = study.points(self.recipe), study.rates(self.recipe)
        self.path = options.results / f"{name}.csv"
        # A row without all columns is measured again, if the folder of its run is there.
        self._rows = {row.run: row for row in read_rows(self.path) if row.measures.keys() >= {*study.measures}}
        task = TASKS[self.recipe.task]
        self._load = functools.cache(lambda data: task(dataclasses.replace(self.recipe, data=data)).load())
        self._flops = {}

    def candidate_jobs(self):
        """{series: the `Job`s from which the learning rate of the series is chosen}"""
        return {
            series: [self._job(point, self.recipe.seed, {}) for point in points]
            for series, points in self.candidates.items()
        }

    def rates(self):
        """{series: learning rate of the best validation score}. Series without all results are left out."""
        rates = {}
        for series, jobs in self.candidate_jobs().items():
            if all(job.key in self._rows for job in jobs):
                best = max((self._rows[job.key] for job in jobs), key=lambda row: row.validation)
                rates[series] = best.learning_rate
        return rates

    def jobs(self):
        """The `Job`s of all points, seed by seed."""
        rates = self.rates()
        return [self._job(point, seed, rates) for seed in self.seeds for point in self.points]

    def rows(self, jobs):
        """The `Row`s of those jobs that have results. They have the names of the jobs' points."""
        return [
            dataclasses.replace(self._rows[job.key], series=job.point.series, point=job.point.label)
            for job in jobs
            if job.key in self._rows
        ]

    def _job(self, point, seed, rates):
        changes, initial = [*point.changes, f"seed={seed}"], None
        if point.series in rates:
            changes.append(f"optimizer.learning_rate={rates[point.series]!r}")
        if any(change.startswith("data.train_images=") for change in changes):
            changes.append(f"data.train_images_seed={seed}")
        if point.initial is not None:
            initial = self._job(point.initial, seed, rates)
            changes += ["model.config=none", "model.function=none", f"model.weights={initial.run.model}"]
            changes += ["model.attention_initialization=random", "model.resize=none"]  # Those of the initial model.
        try:
            recipe = override(self.recipe, changes)
        except InputError as error:
            raise InputError(f"{point}: {error}") from None
        key = digest(recipe, initial and initial.key)
        return Job(point, recipe, Run(self.options.runs / key), initial)

    def missing(self):
        """The `Job`s without results, without repetitions."""
        jobs = [*(job for jobs in self.candidate_jobs().values() for job in jobs), *self.jobs()]
        return list({job.key: job for job in jobs if job.key not in self._rows}.values())

    def flops(self, jobs):
        """The FLOPs of the training of some jobs. Raises an InputError if one of them is impossible."""
        for job in jobs:
            if job.point not in self._flops:
                try:
                    self._flops[job.point] = self._training_flops(job)
                except InputError as error:
                    raise InputError(f"{job.point}: {error}") from None
        return sum(self._flops[job.point] for job in jobs)

    def _training_flops(self, job):
        recipe = job.recipe
        dataset = self._load(recipe.data)
        steps_per_epoch = num_steps_per_epoch(dataset, recipe)
        total = training_steps(recipe, steps_per_epoch)
        build_schedule(recipe, steps_per_epoch, total)
        model = dataclasses.replace(job.trained_model, attention_initialization="random")
        with keras.StatelessScope(initialize_variables=False):  # The model has shapes, but no values.
            built = build_model(dataclasses.replace(recipe, model=model), len(dataset.class_names))
            macs = keras_vit.profile(built).macs
            keras.utils.clear_session(free_memory=False)
        return training_flops(macs, total * recipe.fit.batch_size)

    def speed(self):
        """FLOPs per second of a run: the median of the recorded runs, of this processor if there are any."""
        recorded = [row for row in self._recorded() if row.seconds]
        comparable = [row for row in recorded if row.processor == processor(self._cores)]
        speeds = [row.flops / row.seconds for row in comparable or recorded]
        return statistics.median(speeds) if speeds else _ASSUMED_SPEED * self._cores

    def _recorded(self):
        """The rows of all studies in the folder of the results."""
        return [row for path in self.options.results.glob("*.csv") for row in read_rows(path)]

    def train(self, jobs):
        """Trains the jobs that have no results. Returns whether all of them have results now."""
        self._adopt(jobs)
        jobs = [job for job in {job.key: job for job in jobs}.values() if job.key not in self._rows]
        initial = {job.initial.key: job.initial for job in jobs if job.initial is not None}
        first = [job for job in initial.values() if not job.run.model.is_file()]
        first += [job for job in jobs if job.initial is None and job.key not in initial]
        for group in (first, [job for job in jobs if job.initial is not None]):
            for job, row in _train_all(self.name, group, self.options.jobs):
                if row is None:
                    return False
                self._rows[job.key] = row
                write_rows(self.path, list(self._rows.values()))
                print(f"{self.name}: {job}: {row.score:.2%} in {row.seconds / 60:.0f} minutes", flush=True)
        return True

    def _adopt(self, jobs):
        """Takes the results of runs that other studies have trained."""
        found = {row.run: row for row in self._recorded()}
        for job in jobs:
            row = found.get(job.key)
            if row and job.key not in self._rows and row.measures.keys() >= set(self.study.measures):
                measures = {name: row.measures[name] for name in self.study.measures}
                names = {"series": job.point.series, "point": job.point.label}
                self._rows[job.key] = dataclasses.replace(row, measures=measures, **names)
                write_rows(self.path, list(self._rows.values()))


def run_study(name, study, options, command):
    """Trains the missing runs of a study, and writes its results, its figure and its page.

    Args:
        name: Name of the study and of its files.
        study: `training.studies.study.Study`
        options: `Options`
        command: The command that repeats the study, for the page.

    Returns:
        The `Row`s, or `None` if the study was stopped.

    Raises:
        InputError: If there is no such recipe, or a point cannot be trained.
    """
    experiment = Experiment(name, study, options)
    missing = experiment.missing()
    if missing:
        flops, speed = experiment.flops(missing), experiment.speed()
        print(
            f"{len(missing)} runs of {flops / len(missing):.2g} FLOPs on average. At {speed / 1e9:.0f} GFLOP/s for "
            f"each run, they take {flops / speed / options.jobs / 3600:.1f} hours.",
            flush=True,
        )
    candidates = [job for jobs in experiment.candidate_jobs().values() for job in jobs]
    with sigterm_as_keyboard_interrupt():
        is_finished = experiment.train(candidates) and experiment.train(experiment.jobs())
    rows = experiment.rows(experiment.jobs())
    if {(row.series, row.point) for row in rows} >= {(point.series, point.label) for point in experiment.points}:
        figure = study.figure(summaries(rows), options.runs)
        figure.savefig(experiment.path.with_suffix(".png"), dpi=_DPI)
        write_page(experiment, command)
    return rows if is_finished else None


def _shares(count):
    """The processor's cores, divided among `count` processes."""
    cores = usable_cores()
    if count > len(cores):
        raise InputError(f"--jobs={count} must be at most the number of cores that this process may use, {len(cores)}.")
    return [cores[i::count] for i in range(count)]


def _train_all(name, jobs, count):
    """Trains jobs, `count` at a time. Yields each job with its `Row`, or with `None` if it was stopped."""
    if count == 1:
        for number, job in enumerate(jobs, start=1):
            print(f"\n{name} {number}/{len(jobs)}: {job}", flush=True)
            yield job, train_job(name, job)
        return
    free, waiting = _shares(count), list(jobs)
    running: dict[typing.Any, tuple] = {}
    context = multiprocessing.get_context("spawn")
    try:
        while waiting or running:
            while waiting and free:
                job, share = waiting.pop(0), free.pop()
                print(f"{name}: {job} starts. {len(waiting)} others wait.", flush=True)
                result, sender = context.Pipe(duplex=False)
                process = context.Process(target=_train_and_send, args=(sender, name, job, share))
                process.start()
                sender.close()
                running[result] = job, share, process
            for ready in multiprocessing.connection.wait(list(running)):
                job, share, process = running.pop(ready)
                free.append(share)
                yield job, _received(ready, job, process)
    finally:
        for _, _, process in running.values():
            process.terminate()  # A run saves its state when it gets this signal.
        for _, _, process in running.values():
            process.join()


def _train_and_send(sender, name, job, cores):
    """Trains a job in a process of its own, on some of the processor's cores. What it prints goes to a file."""
    if hasattr(os, "sched_setaffinity"):  # Not available on macOS and Windows.
        os.sched_setaffinity(0, cores)
    job.run.folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{job.run.folder}.log", "a", encoding="utf-8") as log, contextlib.redirect_stdout(log):
        try:
            sender.send(train_job(name, job))
        except InputError as error:
            sender.send(error)


def _received(result, job, process):
    """The result of a process. Raises an InputError if the process failed."""
    try:
        received = result.recv()
    except EOFError:
        process.join()
        raise InputError(f"{job} ended with exit code {process.exitcode}. See {job.run.folder}.log") from None
    process.join()
    if isinstance(received, InputError):
        raise InputError(f"{job}: {received}")
    return received


def train_job(name, job):
    """Trains a `Job` of a study, unless it is trained. Returns its `Row`, or `None` if it was stopped."""
    if not train_once(job.recipe, job.run.folder.parent, job.run.folder, write_result):
        return None
    study = papers.load(name)
    result = read_run_info(job.run.recipe)["result"]
    measures = result.get("measures", {})
    if not measures.keys() >= set(study.measures):
        measures |= study.measure(load_model(job.run.model), job.recipe)
        add_result(job.run, **result | {"measures": measures})
    return _row(job, {name: measures[name] for name in study.measures})


def write_result(task, dataset, run, weights, state):
    """Writes the model and the result of a run of a study. It is used instead of `training.engine.train.finish`.

    It writes no export and no report, because they would take longer than the run.

    Returns:
        The task's evaluation on the test images.
    """
    model, learner = save_model(task, dataset, run, weights, state)
    evaluation = task.evaluate(learner, dataset, "test")
    cost = keras_vit.profile(model)
    images_per_step = dataset.splits["train"].size / num_steps_per_epoch(dataset, task.recipe)
    images = round(state.step * images_per_step)
    column = f"val_{task.metric.name}"
    add_result(
        run,
        **task.results(evaluation),
        best_validation=task.metric.best(row[column] for row in state.history if column in row),
        seconds_of_training=round(state.seconds, 1),
        parameters=cost.parameters,
        macs=cost.macs,
        images_seen=images,
        flops=training_flops(cost.macs, images),
    )
    return evaluation


def _row(job, measures):
    info = read_run_info(job.run.recipe)
    result, git, versions = info["result"], info["git"] or {}, info["versions"]
    is_changed = any(line.endswith(".py") for line in git.get("changed_files", ()))
    validation, metric = result["best_validation"], TASKS[job.recipe.task](job.recipe).metric
    return Row(
        series=job.point.series,
        point=job.point.label,
        seed=job.recipe.seed,
        score=result[f"test_{metric.tested_as or metric.name}"],
        validation=math.nan if validation is None else validation,
        parameters=result["parameters"],
        gmacs=result["macs"] / 1e9,
        flops=result["flops"],
        learning_rate=job.recipe.optimizer.learning_rate,
        train_images=info["num_images"]["train"],
        test_images=result["test_images"],
        seconds=result["seconds_of_training"],
        run=job.key,
        date=info["started"][:10],
        commit=git.get("commit", "")[:8] + "+" * is_changed,
        processor=info["processor"],
        keras=versions["keras"],
        tensorflow=versions["tensorflow"],
        measures=measures,
    )
