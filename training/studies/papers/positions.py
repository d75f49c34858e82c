"""Different position embeddings, added at different places of the model.

Paper: Dosovitskiy et al., arXiv 2010.11929, Table 8 (appendix D.4).
Command: python -m training study positions
Not included: JFT-300M, and 5-shot accuracy on ImageNet.
"""

from training.errors import InputError
from training.reports import published
from training.studies.figures import Panel, Value, plot_panels
from training.studies.results import measured_panel
from training.studies.study import Comparison, Point, Study

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


def comparisons(recipe):
    """Without positions, the accuracy is lower. The kinds of positions are equal."""
    none, one, two, relative = (("stem", kind) for kind in KINDS)
    return [
        Comparison("1-D positions are above none", one, none),
        Comparison("1-D and 2-D positions are equal", one, two, expected="tie"),
        Comparison("1-D and relative positions are equal", one, relative, expected="tie"),
        Comparison("1-D: at the stem and in every layer are equal", one, ("every layer", "1-D"), expected="tie"),
        Comparison(
            "1-D: at the stem and shared by every layer are equal", one, ("every layer shared", "1-D"), expected="tie"
        ),
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
    paper="“An Image is Worth 16x16 Words”, appendix D.4, Table 8",
    claim="A model without position embeddings is far below models with them. There is little difference between the "
    "kinds of position embeddings, and between the places where they are added.",
    method="A ViT with 64 patches is trained from scratch on CIFAR-10. Only its position embeddings change.",
    recipe="cifar10_study",
    points=points,
    figure=figure,
    comparisons=comparisons,
)
