"""Writes the report of a regression run: `report.html` and its figures."""

from html import escape

from training.files import write_text
from training.reports import pages
from training.reports.figures import plot_scatter
from training.reports.parts import cost_numbers, curves, figure, number_list, origin, picture
from training.reports.text import with_unit


def write_regression_report(run, recipe, state, evaluation, model):
    """Writes the figures of a run and its `report.html`.

    Args:
        run: `training.runs.folder.Run` with its `recipe.json`.
        recipe: `training.recipe.config.Recipe`
        state: `training.runs.checkpoints.RunState`
        evaluation: `training.evaluation.regression.Regression` of the test images.
        model: The Keras model.
    """
    result = f"{evaluation.mean_absolute_error:.4g} mean absolute error"
    page = pages.page(
        "regression",
        **origin(run, recipe, "Regression", result),
        verdict=escape(judge(evaluation)),
        numbers=number_list([*_numbers(evaluation), *cost_numbers(model, state)]),
        scatter="\n".join(_scatter(run, evaluation.of_value(index)) for index in range(len(evaluation.names))),
        values="\n".join(_value_row(evaluation.of_value(index)) for index in range(len(evaluation.names))),
        worst="\n".join(_pictures(evaluation, evaluation.worst)),
        examples="\n".join(_pictures(evaluation, evaluation.examples)),
        curves=curves(run, recipe, state, ("mean_absolute_error", "mean absolute error", 1), "standardised squares"),
    )
    write_text(run.report, page)


def judge(evaluation):
    """Sentences that help to judge the errors."""
    unit = " standard deviations of a value" if len(evaluation.names) > 1 else ""
    return (
        f"On {len(evaluation.values):,} held-out test images, the predicted values differ from the true ones by "
        f"{evaluation.mean_absolute_error:.4g}{unit} on average. Always predicting the mean would differ by "
        f"{evaluation.mean_absolute_error_of_mean:.4g}. "
        f"The predictions explain {evaluation.r_squared:.2%} of the variance (R squared)."
    )


def _numbers(evaluation):
    mean = "mean over the test images" + (", in standard deviations of a value" if len(evaluation.names) > 1 else "")
    return [
        ("Mean absolute error", f"{evaluation.mean_absolute_error:.4g}", mean),
        ("Root mean squared error", f"{evaluation.root_mean_squared_error:.4g}", "large errors weigh more"),
        ("R squared", f"{evaluation.r_squared:.4f}", "1 for perfect predictions, 0 for the mean"),
    ]


def _scatter(run, evaluation):
    [name] = evaluation.names
    drawn = plot_scatter(evaluation.values[:, 0], evaluation.predictions[:, 0], with_unit(name, evaluation.units, 0))
    file = "scatter_" + "".join(letter if letter.isalnum() else "_" for letter in name)
    return figure(run, file, drawn, f"predicted against true {name}; R squared {evaluation.r_squared_of(0):.4f}")


def _value_row(evaluation):
    return (
        f"<tr><th scope=row>{escape(with_unit(evaluation.names[0], evaluation.units, 0))}"
        f"<td>{evaluation.mean_absolute_error:.4g}<td>{evaluation.root_mean_squared_error:.4g}"
        f"<td>{evaluation.r_squared_of(0):.4f}<td>{evaluation.mean_absolute_error_of_mean:.4g}"
    )


def _pictures(evaluation, images):
    for index, image in images.items():
        pairs = zip(evaluation.names, evaluation.values[index], evaluation.predictions[index], strict=True)
        caption = ", ".join(f"{name} {true:.4g} → {predicted:.4g}" for name, true, predicted in pairs)
        yield f"<li>{picture(image, caption)}<span>{escape(caption)}</span>"
