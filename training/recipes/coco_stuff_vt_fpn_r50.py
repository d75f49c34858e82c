"""VT-FPN with a ResNet-50 on COCO-Stuff: 53 stuff classes, and one class for all things.

Paper: Wu et al., arXiv 2006.03677, section 5.3 and Table 9. The paper uses Detectron2's 1x recipe for semantic FPNs
(configs/Misc/semantic_R_50_FPN_1x.yaml), with batches of 32 images and a learning rate of 0.04.
Command: python -m training train coco_stuff_vt_fpn_r50 data.directory=path/to/coco_stuff
model.arguments.weights=path/to/resnet50.pth
Hardware: about 2 hours on one A100, estimated from 0.97 exaFLOPs (6 x MACs x images).
Expected: 41.00 % mean IoU (paper); 40.78 % with a Panoptic FPN (model.function=PanopticFPN).
Measured: nothing yet. Tests check only that the recipe runs.

data.directory has the folders train and test, each with images and masks (docs/segmentation.md). The images and masks
are those of Detectron2's coco_2017_train_panoptic_stuffonly and coco_2017_val_panoptic_stuffonly. The recipe differs
from the paper as follows.
The backbone starts from random weights unless model.arguments.weights names ImageNet weights. Images are stretched to
800 x 1216 pixels, also in evaluation. The learning rate decays along a cosine, not in two steps. The momentum does not
increase the effect of the weight decay. With distribution.kind=data_parallel, batch norms use the images of all
devices.
"""

from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="coco_stuff_vt_fpn_r50",
    task="segmentation",
    model=Model(function="VTFPN", arguments={"backbone": "R50"}, input_shape=(800, 1216, 3)),
    data=Data(dataset="folder", validation_fraction=0.0, cache=False),
    # Images are scaled to short sides of 640 to 800 pixels.
    augment=Augment(flip=True, scale_range=(0.8, 1.0)),
    optimizer=Optimizer(kind="sgd", learning_rate=0.04, weight_decay=1e-4, clip_norm=None),
    schedule=Schedule(decay="cosine", warmup="1000 steps"),
    # The 1x recipe has 90,000 steps of 16 images.
    fit=Fit(steps=45_000, batch_size=32, report_every="10%"),
)
