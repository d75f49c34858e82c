"""Variants of a VT-ResNet: other tokenizers, relations and numbers of tokens, or no projectors.

Paper: Wu et al., "Visual Transformers", arXiv 2006.03677, Tables 3 to 7.
Command: python -m training study tokens
Not included: the paper's models on ImageNet, because training them on a CPU would take too long. To train them:
python -m training study tokens recipe=pretrain_imagenet_vt_r18 model.function=VTResNet

As in the paper, a recurrent tokenizer computes all tokens of its module (`split_tokens=false`) and keeps none of the
previous module's tokens unchanged. Every module has a relation layer, except in the variant "no relation". The figure
shows the accuracies in Tables 3, 5 and 6. The text below the published panel states differences between accuracies in
Tables 4 and 7.
"""

from training.errors import InputError
from training.reports import published
from training.studies.figures import Panel, Value, plot_panels
from training.studies.results import measured_panel
from training.studies.study import UNCHANGED_DIGITS, Point, Study

# {difference from the model of Table 2: arguments of VTResNet}
CHANGES = {
    "unchanged": (),
    "pooling tokenizer": ("tokenizer=pooling", "is_recurrent=false"),
    "clustering tokenizer": ("tokenizer=clustering", "is_recurrent=false"),
    "not recurrent": ("is_recurrent=false",),
    "graph convolution": ("relation=graph_convolution",),
    "no relation": ('relation="none"',),  # Needs the quotes: `none` without quotes is parsed as `None`.
    "32 tokens": ("num_tokens=32",),
    "64 tokens": ("num_tokens=64",),
    "no projector": ("has_projector=false",),
}
_SMALL_MODEL = (
    *("stage_depths=1,1", "width=16", "expansion=1"),
    *("num_modules=2", "filters=64", "token_dim=64", "num_heads=4", "group_width=16"),
)
_COMMON = ("split_tokens=false", "relation_modules=none")


def points(recipe):
    """The `training.studies.study.Point`s for a recipe: the models of Tables 3 to 7."""
    if recipe.model.function != "VTResNet":
        raise InputError(
            f"The study 'tokens' requires a recipe with model.function=VTResNet, because the study changes the "
            f"recipe's model.arguments. Received: model.function={recipe.model.function}"
        )
    return [
        Point("VT-ResNet", name, tuple(f"model.arguments.{change}" for change in (*_COMMON, *changes)))
        for name, changes in CHANGES.items()
    ]


def figure(summaries, folder):
    """The measured results beside the published results."""
    rows = published.read("vt_ablations").rows
    printed = Panel(
        "The paper's Tables 3, 5 and 6",
        "difference",
        "ImageNet top-1 accuracy (%)",
        {model: [Value(row["change"], row[model]) for row in rows] for model in rows[0] if model != "change"},
        "In the paper's Tables 4 and 7, recurrent filters add 0.6 and 0.3 points, and projectors add 1.1 and 0.7.",
    )
    return plot_panels([measured_panel(summaries, "point", "difference", "Measured, from scratch"), printed])


STUDY = Study(
    title="What do the tokens of a VT-ResNet need?",
    paper="Tables 3 to 7 of Visual Transformers",
    changes=(
        *UNCHANGED_DIGITS,
        "model.config=none",
        "model.function=VTResNet",
        *(f"model.arguments.{argument}" for argument in _SMALL_MODEL),
        "model.input_shape=64,64,1",  # With this size, the modules get feature maps of 8 x 8.
        "fit.epochs=6",
    ),
    points=points,
    figure=figure,
)
