"""What each command does with its options: calls one function, and prints what came of it."""

import dataclasses
import pathlib
import re
import shlex

from training import recipes
from training.errors import InputError


def train(options):
    from training.assignments import describe, override

    assignments, folder = _take("run", options.assignments)
    if options.recipe is None:
        begun = folder and pathlib.Path(folder) / "recipe.json"
        options.recipe = str(begun) if begun and begun.is_file() else "digits"
    recipe = override(recipes.load(options.recipe), assignments)
    if options.show:
        print(describe(recipe))
        return
    from training.runs import program_path
    from training.train import train

    run, evaluation = train(recipe, options.runs, folder)
    if evaluation is None:
        return
    print(f"\nTest {evaluation}")
    print(f"Run folder: {run.folder} (open its report.html)")
    print("Try next:")
    is_classifier = recipe.task == "classification"
    predict = f"predict {shlex.quote(str(run.folder))} {shlex.quote(str(run.samples))}/*"
    print(f"  {program_path()} -m training {predict}{'' if is_classifier else ' --to predictions'}")
    if is_classifier:
        print(f"  {program_path()} -m training explain {shlex.quote(str(run.folder))}")
        print(f"  {program_path()} -m training train folder data.directory=path/to/your/photographs")
    print(f"  {program_path('tensorboard')} --logdir {shlex.quote(options.runs)}")


def is_assignment(text):
    """Whether an argument is `section.field=value`; a path or an address may have a = in it too."""
    return re.match(r"[\w.]+=", text) is not None


def _take(name, assignments):
    """The assignments without those of a name, and the value of its last one, or `None`."""
    values = [text.removeprefix(f"{name}=") for text in assignments if text.startswith(f"{name}=")]
    return [text for text in assignments if not text.startswith(f"{name}=")], values[-1] if values else None


def plan(options):
    from training.assignments import override
    from training.plan import plan, with_devices

    changes, count = _take("devices", options.assignments)
    recipe = override(recipes.load(options.recipe or "digits"), changes)
    count = count or str(recipe.distribution.devices or 1)
    if not re.fullmatch(r"[1-9]\d{0,4}", count, re.ASCII):
        raise InputError(f"devices must be a whole number from 1 to 99,999. Received: {count}")
    print(plan(with_devices(recipe, int(count)), options.images, options.classes))


def records(options):
    from training.assignments import override
    from training.data import load_dataset
    from training.datasets.records import write_records
    from training.tasks import require_classification

    recipe = override(recipes.load(options.recipe), options.assignments)
    require_classification(recipe, "records")
    dataset = load_dataset(recipe.data)
    print(f"{write_records(dataset, options.to)} shards in {options.to}. Train on them with:")
    print(f"  data.dataset=records data.directory={shlex.quote(options.to)}")


def evaluate(options):
    from training.evaluate import evaluate_source

    print(evaluate_source(options.source, options.assignments, options.split))


def fewshot(options):
    from training.representations import Accuracy, measure, table
    from training.tables import write_csv

    rows, sentences = measure(
        options.source, options.assignments, sorted(set(options.shots)), options.seeds, options.knn
    )
    print("\n".join([*sentences, "", table(rows)]))
    if options.csv is not None:
        header = [field.name for field in dataclasses.fields(Accuracy)]
        write_csv(options.csv, [header, *map(dataclasses.astuple, rows)])


def duplicates(options):
    from training.assignments import override
    from training.duplicates_report import find_and_report

    recipe = override(recipes.load(options.recipe), options.assignments)
    other = recipes.load(options.against) if options.against else recipe
    print(find_and_report(recipe, other, options.to, options.distance, options.correlation))


def study(options):
    from training.study import run_study, table

    assignments, folder = _take("run", options.assignments)
    assignments, recipe = _take("recipe", assignments)
    folder = folder or f"runs/study-{options.name}"
    rows = run_study(options.name, assignments, folder, options.seeds, recipe)
    if rows is not None:
        print(f"\n{table(rows)}\n\n{folder}: results.csv, {options.name}.png")


def vtab(options):
    from training.vtab import run_vtab

    assignments, folder = _take("run", options.assignments)
    assignments, tasks = _take("tasks", assignments)
    weights = [text for text in assignments if not is_assignment(text)]
    assignments = [text for text in assignments if is_assignment(text)]
    results = run_vtab(weights, assignments, folder or "runs/vtab", tasks and tasks.split(","), options.images)
    if results is None:
        return
    print(f"\n{results}")
    if any(results.accuracy.values()):
        print(f"\n{folder or 'runs/vtab'}: results.csv, vtab.png")


def predict(options):
    from training.predict import predict

    return 1 if predict(options.source, options.images, options.top, options.to) else 0


def explain(options):
    from training.explain import explain

    page, unreadable = explain(
        options.source, options.images, options.path, options.compare, options.neighbours, options.image_size
    )
    print(f"{page} (open it in a browser; figures and numbers are beside it)")
    return 1 if unreadable else 0


def export(options):
    from training.export import export

    given = {name: value for name, value in vars(options).items() if value is not None}
    for name in ("command", "environment"):
        given.pop(name, None)
    path, sentence = export(given.pop("source"), **given)
    print(sentence)
    print(path)
