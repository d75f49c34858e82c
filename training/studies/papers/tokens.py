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
from training.studies.models import small_vt_resnet
from training.studies.results import measured_panel
from training.studies.study import Comparison, Point, Study

UNCHANGED, _SERIES = "unchanged", "VT-ResNet"
# {difference from the model of Table 2: arguments of VTResNet}
CHANGES = {
    UNCHANGED: (),
    "pooling tokenizer": ("tokenizer=pooling", "is_recurrent=false"),
    "clustering tokenizer": ("tokenizer=clustering", "is_recurrent=false"),
    "not recurrent": ("is_recurrent=false",),
    "graph convolution": ("relation=graph_convolution",),
    "no relation": ('relation="none"',),  # Needs the quotes: `none` without quotes is parsed as `None`.
    "32 tokens": ("num_tokens=32",),
    "64 tokens": ("num_tokens=64",),
    "tokens of 128 channels": ("token_dim=128",),
    "no projector": ("has_projector=false",),
}
_COMMON = ("split_tokens=false", "relation_modules=none")


def points(recipe):
    """The `training.studies.study.Point`s for a recipe: the models of Tables 3 to 7."""
    if recipe.model.function != "VTResNet":
        raise InputError(
            f"The study 'tokens' requires a recipe with model.function=VTResNet, because the study changes the "
            f"recipe's model.arguments. Received: model.function={recipe.model.function}"
        )
    return [
        Point(_SERIES, name, tuple(f"model.arguments.{change}" for change in (*_COMMON, *changes)))
        for name, changes in CHANGES.items()
    ]


def comparisons(recipe):
    """The differences that the paper's tables show."""
    pairs = (
        ("Table 3: filter-based tokens are above pooling", "not recurrent", "pooling tokenizer", "shows"),
        ("Table 3: filter-based tokens are above clustering", "not recurrent", "clustering tokenizer", "shows"),
        ("Table 4: recurrent filters are above others", UNCHANGED, "not recurrent", "shows"),
        ("Table 5: a transformer is above a graph convolution", UNCHANGED, "graph convolution", "shows"),
        ("Table 5: a transformer is above no relation", UNCHANGED, "no relation", "shows"),
        ("Table 6: 16 and 64 tokens are equal", UNCHANGED, "64 tokens", "tie"),
        ("Table 7: projectors are above none", UNCHANGED, "no projector", "shows"),
    )
    return [
        Comparison(claim, (_SERIES, first), (_SERIES, second), expected=expected)
        for claim, first, second, expected in pairs
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
    paper="“Visual Transformers”, Tables 3 to 7",
    claim="Tokens that depend on the content are better than pooled ones. Recurrent filters, a transformer between the "
    "tokens and projectors increase the accuracy. More than 16 tokens do not.",
    method="A VT-ResNet with three stages of two units, 16 to 64 channels and two modules of 16 tokens is trained from "
    "scratch on 5,000 images of CIFAR-10, enlarged to 96 x 96 pixels, and so are variants of it.",
    recipe="cifar10_study",
    changes=(*small_vt_resnet(96), "data.train_images=5000", "fit.steps=1000"),
    points=points,
    figure=figure,
    comparisons=comparisons,
)
