"""CLIP B/32 fine-tuned on pairs of images and texts of your own: a table with the columns path and text.

Paper: CLIP, arXiv 2103.00020.
Command: python -m training train finetune_pairs data.directory=pairs.csv
Hardware: two CPU cores for hundreds of pairs.
Expected: depends on the pairs.
Measured: none.

With text.frozen=image, only the text encoder is trained. Other tables: JSON Lines, Parquet. data.dataset=archives reads
WebDataset, and data.dataset=coco data.annotations=annotations/captions_*.json reads captions of COCO.
"""

from training.recipe.config import Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="finetune_pairs",
    task="contrastive",
    model=Model(weights="hf://openai/clip-vit-base-patch32"),
    data=Data(dataset="table"),
    optimizer=Optimizer(learning_rate=1e-5, weight_decay=0.1, clip_norm=1.0),
    schedule=Schedule(warmup="10%"),
    fit=Fit(epochs=5, batch_size=64, final_weights="best"),
)
