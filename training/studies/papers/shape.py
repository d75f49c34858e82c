"""Accuracy against compute when the depth, the width, the MLP width, the patch size, or all of them change.

Paper: Dosovitskiy et al., arXiv 2010.11929, Figure 8 (appendix D.2). The paper states no values of its points.
Command: python -m training study shape
Not included: JFT-300M, and 5-shot accuracy on ImageNet.

For images of 128 pixels or more, the models are variations of the paper's base model: 8 layers, D = 1024, MLP width
2048, patches of 32 pixels. For smaller images, they are variations of the recipe's model.
"""

import dataclasses

from keras_vit import ViTConfig
from training.errors import InputError
from training.studies.figures import plot_panels
from training.studies.models import has_large_images, image_shape
from training.studies.results import measured_panel
from training.studies.study import UNCHANGED_DIGITS, Comparison, Point, Study

PAPER_BASE = ViTConfig(patch_size=32, hidden_dim=1024, num_layers=8, num_heads=16, mlp_dim=2048)
# {series: {field: exponent}}. The field is multiplied by factor**exponent.
SERIES = {
    "depth": {"num_layers": 1},
    "width": {"hidden_dim": 1},
    "MLP width": {"mlp_dim": 1},
    "patch size": {"patch_size": -1},
    "all": {"num_layers": 1, "hidden_dim": 1, "mlp_dim": 1, "patch_size": -1},
}
# {series: factors}. The models have at most 64 layers, and patches of at least 8 pixels.
FACTORS = {
    "depth": (1 / 8, 1 / 4, 1 / 2, 2, 4, 8),
    "width": (1 / 8, 1 / 4, 1 / 2, 2),
    "MLP width": (1 / 8, 1 / 4, 1 / 2, 2, 4),
    "patch size": (1 / 2, 2, 4),
    "all": (1 / 2, 2),
}
# Factors of models that a small machine trains in reasonable time.
SMALL_FACTORS = dict.fromkeys(("depth", "width", "MLP width"), (1 / 4, 1 / 2, 2)) | {
    "patch size": (1 / 2, 2),
    "all": (1 / 2,),
}
BASE = "base"


def grid(base, image_side, factors):
    """Returns variations of a base model, in which one dimension or all dimensions are multiplied by a factor.

    Args:
        base: `keras_vit.ViTConfig` with square patches.
        image_side: Height and width of the images. Models with patch sizes that do not divide this side are left out.
        factors: {name in `SERIES`: factors}. The fields of a series are multiplied by each factor. The patch size is
            divided by it instead.

    Returns:
        [(series, label, `ViTConfig`)]. The first element is the base model, the only one of its series.
    """
    variations = [(BASE, BASE, base)]
    for series, series_factors in factors.items():
        for factor in series_factors:
            sizes = {field: getattr(base, field) * factor**power for field, power in SERIES[series].items()}
            if any(size < 1 or size != int(size) for size in sizes.values()):
                continue
            config = base.replace(**{field: int(size) for field, size in sizes.items()})
            if image_side % config.patch_size == 0:
                label = f"x{factor:g}" if len(sizes) > 1 else f"{int(*sizes.values())}"
                variations.append((series, label, config))
    return variations


def points(recipe):
    """The `training.studies.study.Point`s for a recipe."""
    height, width, _ = image_shape(recipe)
    base, factors = recipe.model.config, SMALL_FACTORS
    is_large = has_large_images(recipe)
    if is_large:
        base, factors = PAPER_BASE, FACTORS
    if base is None or base.stem is not None or not isinstance(base.patch_size, int) or height != width:
        raise InputError("The study 'shape' requires square images and a model.config with square patches and no stem.")
    large = ("model.weights=none", "model.config=B/32") if is_large else ()
    return [Point(series, label, (*large, *_changes(config))) for series, label, config in grid(base, height, factors)]


def _changes(config):
    return tuple(
        f"model.config.{field}={getattr(config, field)}"
        for field in ("num_layers", "hidden_dim", "mlp_dim", "patch_size", "num_heads")
    )


def comparisons(recipe):
    """More depth and smaller patches help; more width does not."""
    labels = {}
    for point in points(recipe):
        labels.setdefault(point.series, []).append(point.label)
    base = (BASE, BASE)
    return [
        Comparison("The deepest model is above the base", ("depth", labels["depth"][-1]), base),
        Comparison("The widest model is equal to the base", ("width", labels["width"][-1]), base, expected="tie"),
        Comparison("The smallest patches are above the base", ("patch size", labels["patch size"][-1]), base),
    ]


def figure(summaries, folder):
    """Accuracy against compute relative to the base model, as in the paper. All lines meet at the base model."""
    measured = measured_panel(
        summaries,
        "gmacs",
        "compute per image, relative to the base",
        "Measured, from scratch",
        "In the paper's Figure 8, depth helps most, width helps least, and smaller patches help.",
    )
    [base] = measured.series.pop(BASE)
    unlabelled = dataclasses.replace(base, label="")
    series = {
        name: [dataclasses.replace(value, x=value.x / base.x) for value in (*values, unlabelled)]
        for name, values in measured.series.items()
    }
    return plot_panels([dataclasses.replace(measured, series=series)])


STUDY = Study(
    title="Which dimension of a ViT is worth its compute?",
    paper="“An Image is Worth 16x16 Words”, appendix D.2, Figure 8",
    claim="More depth helps most, and more width least. Smaller patches help without more parameters.",
    method="A ViT is trained from scratch on 1,293 images of digits. One of its dimensions is changed, or all.",
    comparisons=comparisons,
    changes=(*UNCHANGED_DIGITS, "fit.epochs=12"),
    points=points,
    figure=figure,
)
