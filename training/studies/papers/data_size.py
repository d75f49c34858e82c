"""Accuracy against the number of training images, for several models.

Paper: Dosovitskiy et al., arXiv 2010.11929, Figures 3 and 4 and Table 5.
Command: python -m training study data_size
Not included: subsets of JFT-300M (9 to 300 million images), and 5-shot accuracy on ImageNet.

As in the paper, the images are a random subset, and only the number of images changes. Each run takes the same number
of steps. As in early stopping, the weights with the best validation accuracy are used. The models are the paper's ViTs
for images of 128 pixels or more, and small ViTs for smaller images. The study `scaling` has the ResNets of Figure 4.
"""

from training.data.loading import load_dataset
from training.errors import InputError
from training.reports import published
from training.studies.figures import Panel, Value, plot_panels
from training.studies.papers.scaling import LARGE_IMAGE, stem_changes
from training.studies.study import UNCHANGED_DIGITS, Point, Study, measured_panel

FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
_STEPS = ("fit.epochs=none", "fit.steps=250", "fit.report_every=50 steps")
_LARGE = {f"ViT-{name}": ("model.weights=none", f"model.config={name}") for name in ("B/16", "B/32", "L/16", "L/32")}
_SMALL = {
    "width 24": ("model.config.hidden_dim=24", "model.config.mlp_dim=48"),
    "width 64": (),
    "hybrid, width 64": ("model.config.patch_size=1", *stem_changes(32)),
}


def points(recipe):
    """The `training.studies.study.Point`s for a recipe: each model with several fractions of the training images."""
    height, *_ = recipe.model.input_shape or (224,)
    models = _LARGE if height >= LARGE_IMAGE else _SMALL
    if models is _SMALL and (recipe.model.config is None or recipe.model.config.stem is not None):
        raise InputError("The study 'data_size' requires a recipe with a model.config that has no stem.")
    total = load_dataset(recipe.data).source("train").size
    counts = sorted({max(round(fraction * total), 1) for fraction in FRACTIONS})
    return [
        Point(name, f"{count}", (*changes, f"data.train_images={count}"))
        for name, changes in models.items()
        for count in counts
    ]


def figure(summaries, folder):
    """The measured results beside the paper's Table 5."""
    table = published.read("vit_table5")
    models = [name for name in table.rows[0] if name not in ("pretraining", "images")]
    printed = Panel(
        "The paper's Table 5: pre-trained on ImageNet, ImageNet-21k and JFT-300M",
        "pre-training images (millions)",
        "ImageNet accuracy (%)",
        {
            f"ViT-{model}": [Value(row["images"] / 1e6, row[model]) for row in table.rows if row[model] is not None]
            for model in models
        },
    )
    own = measured_panel(summaries, "train_images", "training images", "Measured, from scratch on random subsets")
    return plot_panels([own, printed])


STUDY = Study(
    title="How many images does a model need?",
    paper="Figures 3 and 4 and Table 5",
    digits_changes=(*UNCHANGED_DIGITS, *_STEPS, "fit.final_weights=best"),
    points=points,
    figure=figure,
)
