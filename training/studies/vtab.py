"""VTAB-1k (arXiv 1910.04867): fine-tunes published weights to each of 19 tasks with 1,000 training images."""

import dataclasses
import pathlib
import re
import statistics

from training import recipes
from training.data.loading import load_dataset
from training.engine.train import train_once
from training.errors import InputError, without_queries
from training.files import write_csv
from training.recipe.assignments import from_dict, override, read_run_info
from training.reports import published
from training.reports.text import lay_out
from training.runs.folder import Run, is_finished
from training.studies.figures import plot_bars

_DPI = 200
MEAN = "mean of 19"


@dataclasses.dataclass(frozen=True)
class Task:
    """A task: its name in Table 9 of arXiv 2010.11929, its group, and its changes to the recipe `finetune_vtab`."""

    name: str
    group: str
    changes: str

    @property
    def folder(self):
        """The name of the task's folder."""
        return self.name.lower()


NATURAL, SPECIALISED, STRUCTURED = "Natural", "Specialised", "Structured"


def _task(name, group, dataset, validation_split, test_split=None, label=None):
    fields = {"dataset": dataset, "label": label, "validation_split": validation_split, "test_split": test_split}
    changes = [f"data.{field}={value}" for field, value in fields.items() if value is not None]
    return Task(name, group, " ".join(changes))


# In the order of Table 9, with the splits of google-research/task_adaptation. docs/recipes.md lists the same changes.
TASKS = (
    _task("Caltech101", NATURAL, "caltech101", "train[2753:2953]"),
    _task("CIFAR-100", NATURAL, "cifar100", "train[45000:45200]"),
    _task("DTD", NATURAL, "dtd", "validation[:200]"),
    _task("Flowers102", NATURAL, "oxford_flowers102", "validation[:200]"),
    _task("Pets", NATURAL, "oxford_iiit_pet", "train[2944:3144]"),
    _task("Sun397", NATURAL, "sun397/tfds", "validation[:200]"),
    _task("SVHN", NATURAL, "svhn_cropped", "train[65931:66131]"),
    _task("Camelyon", SPECIALISED, "patch_camelyon", "validation[:200]"),
    _task("EuroSAT", SPECIALISED, "eurosat/rgb", "train[16200:16400]", "train[21600:]"),
    _task("Resisc45", SPECIALISED, "resisc45", "train[18900:19100]", "train[25200:]"),
    _task("Retinopathy", SPECIALISED, "diabetic_retinopathy_detection/btgraham-300", "validation[:200]"),
    _task("Clevr-Count", STRUCTURED, "clevr", "train[63000:63200]", "validation", label="count"),
    _task("Clevr-Dist", STRUCTURED, "clevr", "train[63000:63200]", "validation", label="closest_distance"),
    _task("DMLab", STRUCTURED, "dmlab", "validation[:200]"),
    _task("dSpr-Loc", STRUCTURED, "dsprites", "train[589824:590024]", "train[663552:]", label="x_position"),
    _task("dSpr-Ori", STRUCTURED, "dsprites", "train[589824:590024]", "train[663552:]", label="orientation"),
    _task("KITTI-Dist", STRUCTURED, "kitti", "validation[:200]", label="closest_vehicle"),
    _task("sNORB-Azim", STRUCTURED, "smallnorb", "test[:200]", "test[12150:]", label="label_azimuth"),
    _task("sNORB-Elev", STRUCTURED, "smallnorb", "test[:200]", "test[12150:]", label="label_elevation"),
)
GROUPS = {
    group: tuple(task.name for task in TASKS if task.group == group) for group in (NATURAL, SPECIALISED, STRUCTURED)
}
NAMES = tuple(task.name for task in TASKS)


def task_recipe(task, assignments=(), images=1000):
    """The recipe of a task.

    Args:
        task: `Task`
        assignments: Further changes to `finetune_vtab`.
        images: Number of training images, 800 or 1000. With 1000, the 200 validation images are also used for training,
            as is usual for published results. The model is then not validated, and the weights of the last step are
            used.

    Returns:
        A `training.recipe.config.Recipe`.
    """
    recipe = override(recipes.load("finetune_vtab"), task.changes.split())
    if images == 1000:
        train = f"data.train_split={recipe.data.train_split}+{recipe.data.validation_split}"
        recipe = override(recipe, [train, "data.validation_split=none"])
    return override(recipe, assignments)


@dataclasses.dataclass(frozen=True)
class Results:
    """`accuracy` is {weights: {task: from 0 to 1}}. `missing` is {task: reason}. str() returns a table."""

    accuracy: dict[str, dict[str, float]]
    missing: dict[str, str]

    def __str__(self):
        rows = [("", *self.accuracy)]
        means = {weights: means_of(scores) for weights, scores in self.accuracy.items()}
        for group, names in GROUPS.items():
            rows += [
                (f"  {name}", *(_percent(scores.get(name)) for scores in self.accuracy.values())) for name in names
            ]
            rows.append((f"{group} ({len(names)})", *(_percent(row[group]) for row in means.values())))
        rows.append((MEAN, *(_percent(row[MEAN]) for row in means.values())))
        return "\n".join([lay_out(rows), *(f"{task} is missing: {reason}" for task, reason in self.missing.items())])


def _percent(accuracy):
    return "-" if accuracy is None else f"{100 * accuracy:.2f}"


def means_of(scores):
    """The mean scores of each group and of all tasks.

    Args:
        scores: {name of a task: its score}

    Returns:
        {group or `MEAN`: mean, or `None` if a task is missing}. `MEAN` is the mean of all 19 tasks, not of the groups.
    """
    return {
        name: statistics.mean(scores[task] for task in tasks) if all(task in scores for task in tasks) else None
        for name, tasks in {**GROUPS, MEAN: NAMES}.items()
    }


def run_vtab(weights, assignments, folder, tasks=None, images=1000):
    """Fine-tunes weights to the tasks. Each task is an ordinary run in the folder. Finished runs are not repeated.

    If the data of a task cannot be loaded, the task is reported and skipped. results.csv and vtab.png contain all
    finished runs in the folder, including runs of other tasks and weights.

    Args:
        weights: List of published weights, fine-tuned one by one. If it is empty, the recipe's weights are used.
        assignments: Changes to the recipe `finetune_vtab`.
        folder: Folder of all runs.
        tasks: Names of the tasks. `None`: all 19.
        images: Number of training images, 800 or 1000.

    Returns:
        `Results`, or `None` if the training was stopped.

    Raises:
        InputError: If a task is unknown, or the folder contains a run of these weights with another recipe.
    """
    if unknown := [name for name in tasks or () if name not in NAMES]:
        raise InputError(f"{', '.join(unknown)}: not a task of VTAB-1k. Tasks: {', '.join(NAMES)}")
    folder, chosen = pathlib.Path(folder), [task for task in TASKS if tasks is None or task.name in tasks]
    weights = weights or [recipes.load("finetune_vtab").model.weights]
    planned = _plan(weights, assignments, folder, images)
    results = Results({without_queries(source): {} for source in weights} | _finished_accuracies(folder), {})
    for (source, task), (recipe, run) in planned.items():
        if task not in chosen:
            continue
        print(f"\n{source}, task {chosen.index(task) + 1}/{len(chosen)}: {task.name}", flush=True)
        if not is_finished(recipe, folder, run.folder):
            try:
                load_dataset(recipe.data)
            except InputError as error:
                print(f"{task.name} is left out: {error}")
                results.missing[task.name] = str(error)
                continue
            if not train_once(recipe, folder, run.folder):
                return None
        results.accuracy.update(_finished_accuracies(folder))
        _write_csv(folder / "results.csv", results)
    if any(results.accuracy.values()):
        _write_csv(folder / "results.csv", results)
        figure(results).savefig(folder / "vtab.png", dpi=_DPI)
    return results


def _plan(weights, assignments, folder, images):
    """Returns {(weights, task): (recipe, run)}. Raises an InputError if a run in the folder has another recipe."""
    if any(assignment.startswith("model.weights=") for assignment in assignments):
        raise InputError(
            "model.weights cannot be changed by an assignment. Name the weights as an argument: "
            "python -m training vtab L/16@i21k"
        )
    planned = {}
    for source in weights:
        public_name = without_queries(source)
        weights_folder = folder / re.sub(r"[^\w.-]+", "_", public_name).strip("_")
        for task in TASKS:
            recipe = task_recipe(task, [f"model.weights={source}", *assignments], images)
            planned[public_name, task] = recipe, Run(weights_folder / task.folder)
    for recipe, run in planned.values():
        is_finished(recipe, folder, run.folder)
    return planned


def _finished_accuracies(folder):
    """{weights: {task: accuracy}} of the finished runs in a folder. Each run's recipe.json contains their name."""
    accuracy = {}
    for task in TASKS:
        for path in sorted(folder.glob(f"*/{task.folder}/recipe.json")):
            info = read_run_info(path)
            if "result" in info:
                scores = accuracy.setdefault(without_queries(from_dict(info["recipe"]).model.weights), {})
                scores[task.name] = info["result"]["test_accuracy"]
    return accuracy


def _write_csv(path, results):
    rows = [("weights", "group", "task", "accuracy")]
    for weights, scores in results.accuracy.items():
        rows += [(weights, task.group, task.name, scores[task.name]) for task in TASKS if task.name in scores]
        rows += [(weights, name, "mean", mean) for name, mean in means_of(scores).items() if mean is not None]
    write_csv(path, rows)


def figure(results):
    """A bar chart of each group's mean, as in Figure 2 of the ViT paper. Also shows the means of the paper's Table 9.

    A group has no bar if one of its tasks is missing.
    """
    groups = (MEAN, *GROUPS)
    measured = {
        weights: [None if mean is None else 100 * mean for mean in map(means_of(scores).get, groups)]
        for weights, scores in results.accuracy.items()
    }
    printed = {
        f"{row['model']}, paper": list(map(means_of({name: row[name] for name in NAMES}).get, groups))
        for row in published.read("vit_table9").rows
    }
    names = [f"VTAB ({len(NAMES)} tasks)", *(f"{group} ({len(tasks)})" for group, tasks in GROUPS.items())]
    series = {name: (values, False) for name, values in measured.items()}
    series |= {name: (values, True) for name, values in printed.items()}
    return plot_bars("VTAB-1k, after fine-tuning to each task", names, series, "mean test accuracy (%)")
