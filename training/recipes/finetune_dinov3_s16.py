"""Fine-tunes DINOv3's ViT-S/16 on ImageNet-1k at 256 pixels, with a different learning rate for each layer.

Paper: Siméoni et al., "DINOv3", arXiv 2508.10104, which evaluates frozen features and has no settings for fine-tuning.
The settings are those of EVA-02-S, which has the same size and rotary positions: Fang et al., arXiv 2303.11331, and the
command for eva02_S_pt_in21k_p14 in EVA-02/asuka/README.md of baaivision/EVA. As in dinov3/eval/linear.py of
facebookresearch/dinov3, the class token is classified. The image size is that in the README of facebookresearch/dinov3,
and that of timm's copy.
Command: python -m training train finetune_dinov3_s16
Hardware: about 4.8 exaFLOPs (6 x MACs x images), an estimated 11 hours on one A100.
Expected: not published.
Measured: nothing yet. Tests check only that the recipe runs.

The weights have the DINOv3 License. Accept it on the page of the weights on the Hugging Face Hub, and set the
environment variable HF_TOKEN. Pixels are normalised with the mean and standard deviation of ImageNet, which the model
contains. The authors of EVA-02 vary the strength of RandAugment at random, with a standard deviation of 0.5. They use
timm's list of operations, average the patch tokens, and train on all training images at 336 pixels. In this recipe, the
head starts with zeros, and 1 % of the training images is held out. For your own photographs, add data.dataset=folder
data.directory=photographs data.validation_fraction=0.1, a smaller fit.batch_size and fewer fit.epochs.
"""

from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="finetune_dinov3_s16",
    model=Model(
        weights="S/16@dinov3-lvd1689m",
        changes={"pooling": "token", "drop_path_rate": 0.1},
        input_shape=(256, 256, 3),
    ),
    data=Data(dataset="imagenet2012", validation_fraction=0.01, cache=False),
    augment=Augment(crop="inception", crop_area=(0.08, 1.0), flip=True, randaugment_ops=2, randaugment_magnitude=9),
    optimizer=Optimizer(learning_rate=1e-4, weight_decay=0.05, clip_norm=None, layer_decay=0.8),
    schedule=Schedule(decay="cosine", warmup="5 epochs"),
    fit=Fit(epochs=100, batch_size=1024, label_smoothing=0.1),
)
