"""A small VT-FPN on drawn shapes."""

from training.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

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
