"""What the recipe `drawn_pairs` reaches, and what it reaches if the captions belong to other pictures.

    python -m benchmarks.drawn_pairs --seed 0 [--activation sigmoid] [--shuffled]

Recall at 1 is measured for the 100 pairs of the test split, each of whose captions differs from another one in one
word: for pictures of up to two objects, and for pictures of one object. It is appended to results/drawn_pairs.jsonl.
"""

import argparse
import functools
import pathlib
import tempfile
from unittest import mock

from benchmarks.provenance import provenance
from benchmarks.records import append
from training import recipes
from training.data.sets import drawn_pairs as pairs
from training.engine.train import train
from training.recipe.assignments import override
from training.runs.folder import load_model
from training.tasks import TASKS


def with_caption_of_another_picture(split, index, draw=pairs.draw):
    """Same as `drawn_pairs.draw`, but training pictures have the captions of the next ones."""
    other = (index + 1) % pairs.NUM_PAIRS[split] if split == "train" else index
    return draw(split, index)[0], draw(split, other)[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--activation", choices=("softmax", "sigmoid"), default="softmax")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shuffled", action="store_true")
    options, state = parser.parse_args(), provenance()
    recipe = override(recipes.load("drawn_pairs"), [f"seed={options.seed}", f"fit.loss={options.activation}"])
    draw = with_caption_of_another_picture if options.shuffled else pairs.draw
    with tempfile.TemporaryDirectory() as folder:
        with mock.patch.object(pairs, "draw", draw):
            run, two = train(recipe, folder=pathlib.Path(folder, "run"))
        model = load_model(run.model)
    task = TASKS[recipe.task](recipe)
    with mock.patch.object(pairs, "draw", functools.partial(pairs.draw, most_objects=1)):
        one = task.evaluate(model, task.load(), "test")
    row = vars(options) | {"two objects": two.of_texts[1], "one object": one.of_texts[1]} | state
    append([row], pathlib.Path(__file__).with_name("results") / "drawn_pairs.jsonl")
    print(row)


if __name__ == "__main__":
    main()
