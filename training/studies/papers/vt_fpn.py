"""A VT-FPN beside the Panoptic FPN that it changes, for semantic segmentation.

Paper: Wu et al., "Visual Transformers", arXiv 2006.03677, Tables 9 and 10.
Command: python -m training study vt_fpn
Not included: COCO-Stuff, LIP and pretrained backbones. The recipe can be changed: data.dataset=folder reads photographs
and masks.
"""

import itertools

import numpy as np

import keras_vit
from training.data.loading import load_dataset
from training.data.masks import VOID
from training.data.pipeline import read_once
from training.data.samples import sample_decoder
from training.studies.figures import plot_panels
from training.studies.models import learning_rates
from training.studies.results import measured_panel
from training.studies.study import Comparison, Point, Study

_NECK = {"VT-FPN": ("model.arguments.token_dim=64", "model.arguments.num_heads=4"), "Panoptic FPN": ()}
_LABEL = "neck of 64 channels"
_RATES = ("0.005", "0.01", "0.02")

MEASURES = ("token entropy", "foreground of pixels", "foreground of tokens", "foreground of the best token")
_NUM_BATCHES = 8


def _changes(name):
    sizes = {"backbone": "R18", "width": 16, "neck_dim": 64, "head_dim": 128}
    arguments = (f"model.arguments.{key}={value}" for key, value in sizes.items())
    function = f"model.function={name.replace('-', '').replace(' ', '')}"
    return (function, "model.arguments=none", *arguments, *_NECK[name])


def points(recipe):
    """The `training.studies.study.Point`s for a recipe, one for each model."""
    return [Point(name, _LABEL, _changes(name)) for name in _NECK]


def rates(recipe):
    """Three learning rates of each model."""
    return {name: learning_rates(name, _changes(name), _RATES) for name in _NECK}


def measure(model, recipe):
    """Whether the tokens of a VT-FPN weigh pixels unequally, on test images (arXiv 2006.03677, section 6).

    * `"token entropy"`: mean entropy of the tokens' weights, as a share of the entropy of equal weights.
    * `"foreground of pixels"`: share of the pixels that are not of the first class.
    * `"foreground of tokens"`: mean share of the tokens' weights on these pixels.
    * `"foreground of the best token"`: the same for the token whose share is highest on average.

    All are NaN for a model without tokens.
    """
    if recipe.model.function != "VTFPN":
        return dict.fromkeys(MEASURES, float("nan"))
    source = load_dataset(recipe.data, "mask").source("test")
    batches = read_once(source, sample_decoder(model), lambda sample: sample["mask"][..., 0], recipe.fit.batch_size)
    batches = itertools.islice(batches, _NUM_BATCHES)
    pairs = ((images[is_real], masks[is_real]) for images, masks, is_real in batches)
    images, masks = map(np.concatenate, zip(*pairs, strict=True))
    foreground, maps = (masks > 0) & (masks != VOID), keras_vit.token_maps(model, images)
    most = {name: np.log(values[0, 0].size) for name, values in maps.items()}
    entropies = [np.mean(one) / most[name] for name, one in keras_vit.token_entropy(model, images).items()]
    shares = np.concatenate([keras_vit.foreground_share(values, foreground).mean(axis=0) for values in maps.values()])
    values = np.mean(entropies), foreground.mean(), shares.mean(), shares.max()
    return dict(zip(MEASURES, map(float, values), strict=True))


def comparisons(recipe):
    """The VT-FPN is above the Panoptic FPN."""
    vt, fpn = ((name, _LABEL) for name in _NECK)
    return [Comparison("The VT-FPN is above the Panoptic FPN", vt, fpn)]


def figure(summaries, folder):
    """Mean IoU against compute."""
    note = (
        "In the paper, the mean IoU with ResNet-50 and ResNet-101 changes from 40.78 to 41.00 % and from 41.51 to "
        "41.50 % on COCO-Stuff, and from 47.04 to 47.39 % and from 47.35 to 47.58 % on LIP."
    )
    panel = measured_panel(summaries, "gmacs", "GMACs per image", "Measured", note, y_label="test mean IoU (%)")
    return plot_panels([panel])


STUDY = Study(
    title="Do visual tokens improve a feature pyramid?",
    paper="“Visual Transformers”, section 5.3, Tables 9 and 10",
    claim="If token modules replace the convolutions of a feature pyramid, the mean IoU on COCO-Stuff and LIP stays "
    "the same or increases by up to 0.4 points. The neck needs 6.4 times less compute.",
    method="Small models with a ResNet of four stages of two units and 16 to 128 channels are trained from scratch. "
    "They differ in the neck only. The tokens of the VT-FPN are compared with the masks. A token that weighed all "
    "pixels equally would have an entropy of 100 %, and the same share of foreground as the pixels.",
    recipe="shapes_vt_fpn",
    points=points,
    figure=figure,
    comparisons=comparisons,
    rates=rates,
    measures=MEASURES,
    measure=measure,
)
