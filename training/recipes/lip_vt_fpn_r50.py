"""VT-FPN with a ResNet-50 on Look into Person: 19 classes of body parts and clothes, and the background.

Paper: Wu et al., arXiv 2006.03677, section 5.3 and Table 10: SGD with a learning rate of 0.01 and a weight decay of
5e-4, batches of 96 images, 473 x 473 pixels.
Command: python -m training train lip_vt_fpn_r50 data.directory=path/to/lip
model.arguments.weights=path/to/resnet50.pth
Hardware: about 2 hours on one A100, estimated from 0.7 exaFLOPs (6 x MACs x images).
Expected: 47.39 % mean IoU (paper); 47.04 % with a Panoptic FPN (model.function=PanopticFPN).
Measured: nothing yet. Tests check only that the recipe runs.

The directory has the folders train and test, each with images and masks (docs/segmentation.md). The paper does not give
the number of epochs, the schedule or the random sizes, so we chose them for this recipe. Images are not mirrored,
because left and right limbs are different classes. Without model.arguments.weights the backbone starts from random
weights, not from ImageNet weights as in the paper. Unlike in the paper, the momentum does not increase the effect of
the weight decay.
"""

from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="lip_vt_fpn_r50",
    task="segmentation",
    model=Model(function="VTFPN", arguments={"backbone": "R50"}, input_shape=(473, 473, 3)),
    data=Data(dataset="folder", validation_fraction=0.0, cache=False),
    augment=Augment(scale_range=(0.75, 1.25)),
    optimizer=Optimizer(kind="sgd", learning_rate=0.01, weight_decay=5e-4, clip_norm=None),
    schedule=Schedule(decay="cosine", warmup="5%"),
    fit=Fit(epochs=150, batch_size=96, report_every="10%"),
)
