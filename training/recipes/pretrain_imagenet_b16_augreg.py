"""ViT-B/16 on ImageNet-1k from scratch, with augmentation and one sigmoid per class.

Paper: Steiner et al., "How to train your ViT?", arXiv 2106.10270; configs/vit_i1k.py of google-research/big_vision,
with its augmentation for B/16, named medium2.
Command: python -m training train pretrain_imagenet_b16_augreg
Hardware: about 40 exaFLOPs (6 x MACs x images x epochs), an estimated 90 hours on one A100.
Expected: 79.15 % top-1 at 224 pixels, measured by timm for the authors' best B/16 trained on ImageNet-1k. This
model was trained with the augmentation strong2 (augment.mixup=0.8 augment.randaugment_magnitude=20), and with dropout
and stochastic depth of 0.1. It was then fine-tuned.
Measured: nothing yet. Tests check only that the recipe runs.

Keras multiplies the weight decay by the learning rate, 1e-3. big_vision does not, and its weight decay is 1e-4. The
weight decay of this recipe is therefore 1e-4 / 1e-3 = 0.1. big_vision stores Adam's momentum in bfloat16. This package
stores it in float32.
"""

from keras_vit.architectures.vision_transformer import VARIANTS
from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="pretrain_imagenet_b16_augreg",
    model=Model(config=VARIANTS["B/16"].replace(representation_dim=768, head_bias=-6.9), resize=256),
    data=Data(dataset="imagenet2012", validation_fraction=0.01, cache=False),
    augment=Augment(crop="inception", flip=True, randaugment_ops=2, randaugment_magnitude=15, mixup=0.5),
    optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.1),
    schedule=Schedule(decay="cosine", warmup="10000 steps"),
    fit=Fit(epochs=300, batch_size=4096, loss="sigmoid"),
)
