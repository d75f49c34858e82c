"""Similarity of position embeddings after training with different learning rates, weight decays and numbers of epochs.

Paper: Dosovitskiy et al., arXiv 2010.11929, Figure 10 (appendix D.4): pictures of ViT-L/16 after 7 and 14 epochs.
Command: python -m training study hyperparameters
Not included: JFT-300M. This study uses fewer and smaller images than the paper. The similarity maps are therefore less
clear, and they have fewer patches.
"""

import numpy as np

import keras_vit
from keras_vit.analysis.plots import plot_position_similarity
from training.errors import InputError
from training.runs.folder import Run, load_model
from training.studies.study import UNCHANGED_DIGITS, Point, Study

# Factors of (epochs, learning rate, weight decay) for the paper's three models.
FACTORS = ((1, 0.5, 0.1), (1, 1, 1), (2, 1, 1))


def points(recipe):
    """The `training.studies.study.Point`s for a recipe: one for each element of `FACTORS`."""
    config = recipe.model.config
    if config is None or config.position_embedding != "learned_1d" or recipe.fit.epochs is None:
        raise InputError(
            "The study 'hyperparameters' requires a recipe with fit.epochs and a model.config with "
            "position_embedding=learned_1d."
        )
    variants = []
    for epochs_factor, rate_factor, decay_factor in FACTORS:
        epochs = epochs_factor * recipe.fit.epochs
        rate = f"{rate_factor * recipe.optimizer.learning_rate:.3g}"
        decay = f"{decay_factor * recipe.optimizer.weight_decay:.3g}"
        changes = f"fit.epochs={epochs}", f"optimizer.learning_rate={rate}", f"optimizer.weight_decay={decay}"
        label = f"{epochs} epochs, learning rate {rate}, weight decay {decay}"
        variants.append(Point("ViT", label, changes))
    return variants


def figure(summaries, folder):
    """The similarities in the first run of each point. The keys of position_similarity.npz are the points' labels."""
    maps = {
        summary.first.point: keras_vit.position_similarity(load_model(Run(folder / summary.first.run).model))
        for summary in summaries
    }
    np.savez_compressed(folder / "position_similarity.npz", **maps)  # type: ignore[arg-type]
    named = {label.replace(" epochs, ", " epochs,\n"): similarity for label, similarity in maps.items()}
    return plot_position_similarity(named, size=4.4)


STUDY = Study(
    title="Do the position embeddings depend on how a model is trained?",
    paper="Figure 10",
    changes=(*UNCHANGED_DIGITS, "model.config.patch_size=4", "model.config.num_layers=3", "fit.epochs=20"),
    points=points,
    figure=figure,
)
