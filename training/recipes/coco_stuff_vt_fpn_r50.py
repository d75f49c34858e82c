"""VT-FPN with a ResNet-50 on COCO-Stuff: 53 kinds of stuff, and all things as one class.

Paper: Wu et al., arXiv 2006.03677, section 5.3 and Table 9, which takes Detectron2's 1x recipe for semantic FPNs
(configs/Misc/semantic_R_50_FPN_1x.yaml) with batches of 32 images and a learning rate of 0.04.
Command: python -m training train coco_stuff_vt_fpn_r50 data.directory=path/to/coco_stuff
model.arguments.weights=path/to/resnet50.pth
Hardware: about 2 hours of one A100, estimated from 0.97 exaFLOPs (6 x MACs x images).
Expected: 41.00 % mean IoU, the paper's; 40.78 % of a Panoptic FPN (model.function=PanopticFPN).
Measured: nothing yet but that it runs.

The directory has train and test, each with images and masks (docs/segmentation.md): those of Detectron2's
coco_2017_train_panoptic_stuffonly and its validation counterpart. Not as there: without model.arguments.weights the
backbone begins with random weights and not with those of ImageNet; images are stretched to 800 x 1216 pixels, also in
the evaluation; the learning rate falls along a cosine and not in two steps; the weight decay is not multiplied by the
momentum. Batch norms are over the images of all devices with distribution.kind=data_parallel.
"""

from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="coco_stuff_vt_fpn_r50",
    task="segmentation",
    model=Model(function="VTFPN", arguments={"backbone": "R50"}, input_shape=(800, 1216, 3)),
    data=Data(dataset="folder", validation_fraction=0.0, cache=False),
    # Short sides of 640 to 800 pixels.
    augment=Augment(flip=True, scale_range=(0.8, 1.0)),
    optimizer=Optimizer(kind="sgd", learning_rate=0.04, weight_decay=1e-4, clip_norm=None),
    schedule=Schedule(decay="cosine", warmup="1000 steps"),
    # The 1x recipe has 90,000 steps of 16 images.
    fit=Fit(steps=45_000, batch_size=32, report_every="10%"),
)
