"""A linear head for segmentation on a frozen DINOv2, for a folder of your own photographs and masks.

Paper: DINOv2, arXiv 2304.07193, section 7.4 (a linear layer on frozen features).
Command: python -m training train segment_folder data.directory=PATH
Hardware: two CPU cores. A hundred photographs take about ten minutes, with their features.
Expected: depends on the images.
Measured: none.

The features of the encoder are computed once. model.head=dpt sees finer details, and model.head=eomt learns masks. With
model.train_encoder=true, all weights are trained; then choose a lower rate, and optimizer.layer_decay=0.8.
"""

from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="segment_folder",
    task="segmentation",
    model=Model(encoder="S/14@dinov2", head="linear", input_shape=(448, 448, 3)),
    data=Data(dataset="folder", views=4),
    augment=Augment(flip=True, scale_range=(0.5, 2.0)),
    optimizer=Optimizer(learning_rate=3e-3, weight_decay=1e-4, clip_norm=None),
    schedule=Schedule(warmup="5%"),
    fit=Fit(epochs=None, steps=1500, batch_size=16, report_every="4%", final_weights="best"),
)
