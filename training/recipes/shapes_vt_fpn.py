"""A small VT-FPN on generated images of discs, squares and triangles, so that no data are downloaded.

Paper: none; the model is a small version of the VT-FPN of Wu et al., arXiv 2006.03677, section 5.3.
Command: python -m training train shapes_vt_fpn
Hardware: about five minutes on two CPU cores shared with other processes.
Expected: a mean IoU above 90 % on the test images, as checked by a slow test.
Measured: 96.89 % with seed 0 (2026-11-22, TensorFlow 2.21, Keras 3.15).

With head_dim=128, each of the 32 groups of the head's norms has four channels. With head_dim=32, each channel would
be normalised alone.
"""

from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="shapes_vt_fpn",
    task="segmentation",
    model=Model(
        function="VTFPN",
        arguments={"backbone": "R18", "width": 16, "neck_dim": 64, "token_dim": 64, "num_heads": 4, "head_dim": 128},
        input_shape=(64, 64, 3),
    ),
    data=Data(dataset="shapes"),
    augment=Augment(flip=True),
    optimizer=Optimizer(learning_rate=1e-2, weight_decay=0.01),
    schedule=Schedule(warmup="5%"),
    fit=Fit(epochs=16, batch_size=16),
)
