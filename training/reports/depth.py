"""Writes the report of a run of depth estimation: `report.html` and its figures."""

from html import escape

import numpy as np

from training.evaluation.depth import HISTOGRAM
from training.files import write_text
from training.reports import pages
from training.reports.figures import ERROR_SCALE, depth_scale, plot_color_bars, plot_histogram
from training.reports.parts import cost_numbers, curves, figure, number_list, origin, picture, table
from training.reports.text import depth_rows


def write_depth_report(run, recipe, state, evaluation, model, quality):
    """Writes the figures of a run and its `report.html`.

    Args:
        run: `training.runs.folder.Run` with its `recipe.json`.
        recipe: `training.recipe.config.Recipe`
        state: `training.runs.checkpoints.RunState`
        evaluation: `training.evaluation.depth.Depth` of the test images.
        model: The Keras model.
        quality: (name in the history, label, factor of its values) of the metric that is shown beside the loss.
    """
    scale = depth_scale(*_range(evaluation))
    bars = {f"depth ({evaluation.unit})" if evaluation.unit else "depth": scale, "relative error (%)": ERROR_SCALE}
    shares = 100 * evaluation.histogram / evaluation.histogram.sum()
    errors = plot_histogram(100 * HISTOGRAM, shares, "relative error (%)", "pixels (%)")
    page = pages.page(
        "depth",
        **origin(run, recipe, "Depth estimation", str(evaluation)),
        verdict=escape(judge(evaluation)),
        numbers=number_list([*_numbers(evaluation), *cost_numbers(model, state)]),
        comparisons=table(depth_rows(evaluation)),
        errors=figure(run, "relative_errors", errors, "shares of the pixels by relative error"),
        bars=figure(run, "color_bars", plot_color_bars(bars), "the colours of depths and of relative errors"),
        examples="\n".join(_quadruple(scale, *item) for item in evaluation.examples.items()),
        worst="\n".join(_quadruple(scale, *item) for item in evaluation.worst.items()),
        curves=curves(run, recipe, state, quality, "training loss"),
    )
    write_text(run.report, page)


def judge(evaluation):
    """Sentences that help to judge the errors."""
    name, means = evaluation.main
    constant, error = evaluation.constant
    height, width = evaluation.size
    return (
        f"On {evaluation.num_images:,} held-out test images, depth ({name}) is wrong by {means['AbsRel']:.2%} of the "
        f"true depth on average (AbsRel). Always predicting {evaluation.with_unit(constant)}, the best constant, would "
        f"be wrong by {error:.2%}. {means['δ1']:.2%} of the pixels are within a factor of 1.25 of the true depth (δ1). "
        f"Depth is compared at the model's input size of {height} x {width} pixels."
    )


def _numbers(evaluation):
    name, means = evaluation.main
    return [
        ("AbsRel", f"{means['AbsRel']:.2%}", f"mean |p - d| / d of predicted depth p and true depth d, {name}"),
        ("RMSE", evaluation.with_unit(means["RMSE"]), "root mean squared error, mean over the images"),
        ("δ1", f"{means['δ1']:.2%}", "of the pixels are within a factor of 1.25"),
    ]


def _range(evaluation):
    """The depths at the ends of the colour scale: nearly all true depths in the pictures are between them."""
    depths = [true[true > 0] for _, _, true, _ in [*evaluation.examples.values(), *evaluation.worst.values()]]
    low, high = np.quantile(np.concatenate(depths), (0.01, 0.99))
    return low, max(high, 1.01 * low)


def _quadruple(scale, index, shown):
    error, image, true, predicted = shown
    true = np.where(true > 0, true, np.nan)
    drawn = {
        f"test image {index}": image,
        "true depth": scale.to_rgba(true, bytes=True)[..., :3],
        "predicted depth": scale.to_rgba(predicted, bytes=True)[..., :3],
        "relative error": ERROR_SCALE.to_rgba(100 * (predicted / true - 1), bytes=True)[..., :3],
    }
    note = f"<span class=note>image {index}, AbsRel {error:.1%}</span>"
    return "<li>" + "".join(picture(array, name) for name, array in drawn.items()) + note
