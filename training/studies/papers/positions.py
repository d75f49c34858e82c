"""Different position embeddings, added at different places of the model.

Paper: Dosovitskiy et al., arXiv 2010.11929, Table 8 (appendix D.4).
Command: python -m training study positions
Not included: JFT-300M, and 5-shot accuracy on ImageNet.
"""

from training.errors import InputError
from training.reports import published
from training.studies.figures import Panel, Value, plot_panels
from training.studies.results import measured_panel
from training.studies.study import UNCHANGED_DIGITS, Point, Study

KINDS = {"none": "none", "1-D": "learned_1d", "2-D": "learned_2d", "relative": "relative"}
PLACES = {"stem": "stem", "every layer": "every_layer", "every layer shared": "every_layer_shared"}
_PLACED = ("1-D", "2-D")  # Kinds that can also be added in the layers.


def points(recipe):
    """The `training.studies.study.Point`s for a recipe: one for each number in Table 8."""
    if recipe.model.config is None:
        raise InputError("The study 'positions' requires a recipe with a model.config.")
    return [
        Point(
            place, kind, (f"model.config.position_embedding={KINDS[kind]}", f"model.config.position_placement={field}")
        )
        for place, field in PLACES.items()
        for kind in KINDS
        if place == "stem" or kind in _PLACED
    ]


def figure(summaries, folder):
    """The measured results beside the paper's Table 8."""
    rows = published.read("vit_table8").rows
    printed = Panel(
        "The paper's Table 8: ViT-B/16, pre-trained on JFT-300M",
        "positions",
        "ImageNet 5-shot linear accuracy (%)",
        {
            place: [Value(row["positions"], 100 * row[place]) for row in rows if row[place] is not None]
            for place in PLACES
        },
    )
    return plot_panels([measured_panel(summaries, "point", "positions", "Measured, from scratch"), printed])


STUDY = Study(
    title="Which position embedding is best?",
    paper="Table 8",
    changes=(*UNCHANGED_DIGITS, "model.config.patch_size=4", "model.config.num_layers=3", "fit.epochs=12"),
    points=points,
    figure=figure,
)
