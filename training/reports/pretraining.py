"""Writes the report of a run of pre-training: `report.html` and its figures."""

from html import escape

from training.files import write_text
from training.reports import pages
from training.reports.parts import cost_numbers, curves, number_list, origin, picture

_TITLES = "test image", "hidden patches", "predicted patches"


def write_pretraining_report(run, recipe, state, prediction, model):
    """Writes the figures of a run and its `report.html`.

    Args:
        run: `training.runs.folder.Run` with its `recipe.json`.
        recipe: `training.recipe.config.Recipe`
        state: `training.runs.checkpoints.RunState`
        prediction: `training.evaluation.pretraining.Prediction` of the test images.
        model: The Keras model without the layers that predict patches.
    """
    name = prediction.metric.replace("_", " ")
    numbers = [
        (name.capitalize(), f"{prediction.value:.2%}", f"of hidden patches of {prediction.num_images:,} test images"),
        ("Loss", f"{prediction.loss:.4f}", "mean over the test images"),
    ]
    meanings = {
        "accuracy": f"{prediction.value:.2%} of the colors of hidden patches are predicted correctly.",
        "explained_variance": f"The predictions explain {prediction.value:.2%} of the variance of the hidden patches.",
    }
    verdict = (
        f"{meanings[prediction.metric]} Whether the features are useful is shown by fine-tuning the model or by a "
        f"classifier on its features: <code>python -m training fewshot {escape(str(run.folder))}</code>"
    )
    unit = "nats" if prediction.metric == "accuracy" else "mean squared error"
    page = pages.page(
        "pretraining",
        **origin(run, recipe, "Pre-training without labels", f"{prediction.value:.2%} {name}"),
        verdict=verdict,
        numbers=number_list([*numbers, *cost_numbers(model, state)]),
        examples="\n".join(f"<li>{''.join(map(picture, triple, _TITLES))}" for triple in prediction.examples),
        curves=curves(run, recipe, state, (prediction.metric, f"{name} (%)", 100), unit),
    )
    write_text(run.report, page)
