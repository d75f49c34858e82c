"""ViT-B/16 on ImageNet-21k from scratch, with augmentation and one sigmoid per class.

Paper: Steiner et al., "How to train your ViT?", arXiv 2106.10270; configs/vit_i21k.py of google-research/big_vision,
with its augmentation for B/16, named light2.
Command: python -m training train pretrain_imagenet21k_b16_augreg data.directory=path/or/gs://bucket/of/the/shards
Hardware: about 450 exaFLOPs (6 x MACs x images x epochs), an estimated 1,000 hours on one A100.
Expected: 84.53 % top-1 on ImageNet-1k after fine-tuning at 224 pixels, measured by timm for the authors' model, which
was trained with the augmentation medium1 instead of light2 (augment.randaugment_magnitude=15).
Measured: nothing yet. Tests check only that the recipe runs.

The 14 million images of 21,843 classes are not in TFDS: convert them to shards (docs/recipes.md). Keras multiplies the
weight decay by the learning rate, 1e-3. big_vision does not, and its weight decay is 1e-4. The weight decay of this
recipe is therefore 1e-4 / 1e-3 = 0.1. big_vision stores Adam's momentum in bfloat16. This package stores it in float32.
"""

from keras_vit.architectures.vision_transformer import VARIANTS
from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="pretrain_imagenet21k_b16_augreg",
    model=Model(config=VARIANTS["B/16"].replace(pooling="avg", head_bias=-10.0), resize=256),
    data=Data(dataset="records", cache=False),
    augment=Augment(crop="inception", flip=True, randaugment_ops=2, randaugment_magnitude=10, mixup=0.2),
    optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.1),
    schedule=Schedule(decay="cosine", warmup="10000 steps"),
    fit=Fit(epochs=300, batch_size=4096, loss="sigmoid"),
)
