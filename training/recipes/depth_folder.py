"""A DPT head for depth on a frozen DINOv2, for a folder of your own photographs with depth.

Paper: DINOv2, arXiv 2304.07193, section 7.4, and DPT, arXiv 2103.13413; the rate is our own.
Command: python -m training train depth_folder data.directory=PATH (and model.arguments.max_depth=METRES)
Hardware: two CPU cores for hundreds of images.
Expected: depends on the images.
Measured: none.

The features of the encoder are computed once. data.depth_scale is the number of metres of the value 1 in PNG files.
"""

from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="depth_folder",
    task="depth",
    model=Model(
        encoder="S/14@dinov2",
        head="dpt",
        head_arguments={"features": 64},
        arguments={"max_depth": 10.0},
        input_shape=(392, 518, 3),
    ),
    data=Data(dataset="folder", views=2),
    augment=Augment(flip=True),
    optimizer=Optimizer(learning_rate=1e-3, weight_decay=1e-2),
    schedule=Schedule(warmup="5%"),
    fit=Fit(epochs=20, batch_size=8, final_weights="best"),
)
