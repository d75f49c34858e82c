"""Writes the report of an image-text run: `report.html` and its figures."""

from html import escape

from training.files import write_text
from training.reports import pages
from training.reports.parts import cost_numbers, curves, number_list, origin, picture


def write_retrieval_report(run, recipe, state, evaluation, model):
    """Writes the figures of a run and its `report.html`.

    Args:
        run: `training.runs.folder.Run` with its `recipe.json`.
        recipe: `training.recipe.config.Recipe`
        state: `training.runs.checkpoints.RunState`
        evaluation: `training.evaluation.retrieval.Retrieval` of the test images.
        model: The image encoder.
    """
    page = pages.page(
        "retrieval",
        **origin(run, recipe, "Images and texts", f"{evaluation.of_texts[1]:.1%} recall at 1"),
        verdict=escape(judge(evaluation)),
        numbers=number_list([*_numbers(evaluation), *cost_numbers(model, state)]),
        worst="\n".join(_pictures(evaluation.worst)),
        examples="\n".join(_pictures(evaluation.examples)),
        curves=curves(run, recipe, state, ("recall_at_1", "recall at 1 in a batch (%)", 100)),
    )
    write_text(run.report, page)


def judge(evaluation):
    """Sentences that help to judge the result."""
    return (
        f"For {evaluation.of_texts[1]:.1%} of {evaluation.num_images:,} held-out test images, a text of their own is "
        f"the most similar one of {evaluation.num_texts:,} texts. By chance: about {evaluation.chance:.1%}. "
        f"For {evaluation.of_images[1]:.1%} of the texts, their image is the most similar one."
    )


def _numbers(evaluation):
    for name, recalls in (("Text of an image", evaluation.of_texts), ("Image of a text", evaluation.of_images)):
        rest = ", ".join(f"{recall:.1%} at {most}" for most, recall in recalls.items() if most > 1)
        yield name, f"{recalls[1]:.2%}", f"recall at 1; {rest}"


def _pictures(images):
    for pixels, text, found in images.values():
        caption = text if text == found else f"{text} → {found}"
        yield f"<li>{picture(pixels, caption)}<span>{escape(caption)}</span>"
