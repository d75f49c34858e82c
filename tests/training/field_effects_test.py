"""Every field of a recipe has an effect. No field is accepted and ignored."""

import collections
import dataclasses
import importlib
import random

import keras
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

import keras_vit
from tests.pictures import encoded, noise
from tests.training.fitting import keys_of, linear_model
from training.data.augment import build_augmentation
from training.data.loading import load_dataset
from training.data.sources import BatchShard
from training.engine.distribution import Engine
from training.engine.fitting import Fitting, seed
from training.engine.models import build_model
from training.engine.optimizers import build_optimizer
from training.engine.schedules import build_schedule
from training.recipe.assignments import override
from training.recipe.config import Recipe
from training.tasks import TASKS
from training.tasks.losses import Objective

STEPS_PER_EPOCH = 9
PICTURE = encoded(noise(11, 13), "PNG")


def splits(recipe):
    """The size of each split."""
    return {name: source.size for name, source in load_dataset(recipe.data).splits.items()}


def order(recipe):
    """The order of the training images in an epoch."""
    source = load_dataset(recipe.data).splits["train"]
    return [key["image"] for _, key in keys_of(source, BatchShard(recipe.fit.batch_size), seed=recipe.seed)]


def images(recipe):
    """One image in four epochs and a mixed batch, made as in the pipeline but eagerly."""
    changes = build_augmentation(build_model(recipe, 3), recipe.augment)
    decoded = changes.decode({"image": PICTURE})
    pixels = [changes.change(decoded, (epoch, 7))["image"] for epoch in range(4)]
    mixed = changes.mix(tf.stack(pixels), tf.one_hot([0, 1, 2, 0], 3), (5, 8), 4)
    return [np.asarray(part).tobytes() for part in (*pixels, *mixed)]


def weights(recipe):
    """The weights after two steps with the same gradients, or their moving averages."""
    random.seed(0)
    model = build_model(recipe, 3)
    optimizer = build_optimizer(recipe, model, STEPS_PER_EPOCH)
    for step in (1, 2):
        optimizer.apply([keras.ops.full(v.shape, 0.1 * step) for v in model.trainable_variables])
    return [np.array(v).tobytes() for v in optimizer.averages or model.trainable_variables]


def rates(recipe):
    schedule = build_schedule(recipe, STEPS_PER_EPOCH, 40)
    return [float(schedule(step)) for step in range(0, 40, 3)]


def loss(recipe):
    rng = np.random.default_rng(0)
    labels, logits, teacher = np.eye(4, dtype="float32"), *rng.normal(size=(2, 4, 4)).astype("float32")
    objective = Objective(recipe)
    return [float(value) for value in objective(labels, logits, teacher if objective.has_teacher else None)]


def model(recipe):
    seed(recipe)
    try:
        built = build_model(recipe, 3)
    finally:
        keras.config.set_dtype_policy("float32")
    block = built.get_layer("encoder_block_0")
    config = keras_vit.describe(built).config
    return built.name, built.input_shape, config, block.compute_dtype, block.trainable, block.use_rematerialization


def fitting(recipe):
    with linear_model():
        made = Fitting(TASKS[recipe.task](recipe), load_dataset(recipe.data), Engine(recipe.distribution))
    steps = made.total_steps, made.report_steps, made.checkpoint_steps, made.images_per_step
    return steps, made.trained.accumulation_steps


def learner(recipe):
    built = TASKS[recipe.task](recipe).build_learner(build_model(recipe, 3))
    return {name: value for name, value in built.get_config().items() if name not in ("name", "model")}


FROM_WEIGHTS = (*("model.config=none", "model.weights=WEIGHTS", "model.input_shape=8,8,1"), "model.changes.num_heads=4")
PHOTOGRAPHS = ("data.dataset=folder", "data.directory=PHOTOGRAPHS", "data.tfds_directory=none")
EXPONENTIAL = ("schedule.decay=exponential", "schedule.rate=0.5", "schedule.every=5 steps")
DRAWN = ("data.cache=false", "data.train_images=30")
TEACHER = ("distillation.teacher=a teacher",)
PRETRAINING = ("task=pretraining", "fit.label_smoothing=0", "model.config.patch_size=4")
MAE = (
    *("task=pretraining", "fit.label_smoothing=0", "pretraining.method=mae", "pretraining.decoder_layers=1"),
    *("pretraining.decoder_dim=8", "pretraining.decoder_heads=2"),
)
NAMED_SPLITS = ("data.validation_fraction=0", "data.train_split=train[:100]", "data.validation_split=train[100:120]")

# {field: (settings of the recipe, changed settings, function that shows the effect)}, or a test of the effect.
EFFECTS = {
    "name": ((), "name=other", model),
    "seed": "data.pipeline_test.test_seeds_follow_from_the_recipe_the_epoch_and_the_place",
    "task": "segmentation.runs_test.test_leaves_a_model_its_export_and_its_numbers",
    "model.config": ((), "model.config.num_layers=2", model),
    "model.weights": "engine.train_test.test_fine_tuning_begins_with_the_weights_and_a_new_head",
    "model.encoder": "segmentation.heads_test.test_a_frozen_encoder_keeps_its_weights",
    "model.head": "segmentation.heads_test.test_a_frozen_encoder_keeps_its_weights",
    "model.head_arguments": "segmentation.heads_test.test_a_frozen_encoder_keeps_its_weights",
    "model.train_encoder": "segmentation.heads_test.test_what_is_trained",
    "model.train_last_blocks": "segmentation.heads_test.test_what_is_trained",
    "model.function": "recipe.model_functions_test.test_a_model_of_another_kind",
    "model.arguments": "recipe.model_functions_test.test_a_model_of_another_kind",
    "model.changes": (FROM_WEIGHTS, "model.changes.drop_path_rate=0.3", model),
    "model.input_shape": ((), "model.input_shape=12,8,1", model),
    "model.resize": ((), "model.resize=12", images),
    "model.attention_initialization": ((), "model.attention_initialization=mimetic", weights),
    "model.freeze_up_to": ((), "model.freeze_up_to=encoder_block_0", model),
    "data.dataset": "data.loading_test.test_without_a_test_split_the_validation_split_is_the_test",
    "data.label": "data.loading_test.test_tasks_of_vtab_have_their_images_and_labels",
    "data.directory": (PHOTOGRAPHS, "data.directory=OTHERS", splits),
    "data.mask": "segmentation.runs_test.test_masks_of_tfds",
    "data.mask_classes": "segmentation.runs_test.test_masks_of_tfds",
    "data.mask_offset": "segmentation.runs_test.test_masks_of_tfds",
    "data.annotations": "data.sets.coco_test.test_panoptic_segments",
    "data.depth": "data.loading_test.test_depth_of_tfds",
    "data.depth_scale": "data.sets.depth_folder_test.test_depth_is_in_metres_and_0_where_it_is_unknown",
    "data.tfds_directory": "data.loading_test.test_array_records_are_read_in_any_order",
    "data.train_split": (NAMED_SPLITS, "data.train_split=train[:90]", splits),
    "data.validation_split": (NAMED_SPLITS, "data.validation_split=train[100:110]", splits),
    "data.test_split": ((), "data.test_split=test[:7]", splits),
    "data.validation_fraction": ((), "data.validation_fraction=0.2", splits),
    "data.classes": ((), "data.classes=1,2,7", splits),
    "data.train_images": ((), "data.train_images=100", splits),
    "data.train_images_seed": (DRAWN, "data.train_images_seed=1", order),
    "data.test_fraction": (PHOTOGRAPHS, "data.test_fraction=0.5", splits),
    "data.cache": "data.pipeline_test.test_too_many_images_for_the_memory_are_refused",
    "data.views": "data.feature_cache_test.test_features_are_those_of_the_views",
    "data.cache_limit": "data.feature_cache_test.test_the_size_is_limited",
    "data.max_failures": "seen_images_test.test_a_deleted_image",
    "data.shuffle_buffer": (DRAWN, "data.shuffle_buffer=7", order),
    "augment.library": (("augment.cutmix=1",), "augment.library=keras_cv", images),
    "augment.crop": ((), "augment.crop=inception", images),
    "augment.crop_from": (("augment.crop=random", "augment.crop_from=10"), "augment.crop_from=12", images),
    "augment.crop_area": (("augment.crop=inception",), "augment.crop_area=0.5,0.6", images),
    "augment.scale_range": ((), "augment.scale_range=0.5,2", images),
    "augment.flip": ((), "augment.flip=true", images),
    "augment.translation": ((), "augment.translation=0.2", images),
    "augment.rotation": ((), "augment.rotation=20", images),
    "augment.scale": ((), "augment.scale=0.3", images),
    "augment.fill": ((), "augment.fill=reflect", images),
    "augment.color_jitter": ((), "augment.color_jitter=0.4", images),
    "augment.randaugment_ops": ((), "augment.randaugment_ops=2", images),
    "augment.randaugment_magnitude": (("augment.randaugment_ops=2",), "augment.randaugment_magnitude=25", images),
    "augment.autoaugment": ((), "augment.autoaugment=true", images),
    "augment.erasing": ((), "augment.erasing=0.5", images),
    "augment.mixup": ((), "augment.mixup=0.5", images),
    "augment.cutmix": ((), "augment.cutmix=0.5", images),
    "optimizer.kind": ((), "optimizer.kind=rmsprop", weights),
    "optimizer.learning_rate": ((), "optimizer.learning_rate=0.01", weights),
    "optimizer.weight_decay": ((), "optimizer.weight_decay=0.5", weights),
    "optimizer.momentum": ((), "optimizer.momentum=0.5", weights),
    "optimizer.square_momentum": ((), "optimizer.square_momentum=0.5", weights),
    "optimizer.epsilon": ((), "optimizer.epsilon=0.1", weights),
    "optimizer.clip_norm": (("optimizer.kind=sgd",), "optimizer.clip_norm=none", weights),
    "optimizer.layer_decay": ((), "optimizer.layer_decay=0.5", weights),
    "optimizer.ema": ((), "optimizer.ema=0.9", weights),
    "schedule.decay": ((), "schedule.decay=constant", rates),
    "schedule.warmup": ((), "schedule.warmup=1 epoch", rates),
    "schedule.start": ((), "schedule.start=0.001", rates),
    "schedule.end": ((), "schedule.end=0.0001", rates),
    "schedule.rate": (EXPONENTIAL, "schedule.rate=0.9", rates),
    "schedule.every": (EXPONENTIAL, "schedule.every=7 steps", rates),
    "fit.epochs": ((), "fit.epochs=3", fitting),
    "fit.steps": (("fit.epochs=none", "fit.steps=5"), "fit.steps=6", fitting),
    "fit.batch_size": ((), "fit.batch_size=32", fitting),
    "fit.accumulation_steps": ((), "fit.accumulation_steps=2", fitting),
    "fit.loss": ((), "fit.loss=sigmoid", loss),
    "fit.label_smoothing": ((), "fit.label_smoothing=0.2", loss),
    "fit.precision": ((), "fit.precision=mixed_bfloat16", model),
    "fit.rematerialize": ((), "fit.rematerialize=true", model),
    "fit.report_every": ((), "fit.report_every=5 steps", fitting),
    "fit.checkpoint_every": ((), "fit.checkpoint_every=5 steps", fitting),
    "fit.final_weights": "engine.train_test.test_the_best_weights_are_kept_if_asked_for",
    "distillation.teacher": "engine.train_test.test_a_teacher_is_learned_from",
    "distillation.weight": (TEACHER, "distillation.weight=0.5", loss),
    "distillation.temperature": (TEACHER, "distillation.temperature=3", loss),
    "pretraining.method": "tasks.pretraining_test.test_only_what_runs_is_trained",
    "pretraining.mask_ratio": (PRETRAINING, "pretraining.mask_ratio=0.15", learner),
    "pretraining.target": (PRETRAINING, "pretraining.target=small_patch", learner),
    "pretraining.decoder_layers": (MAE, "pretraining.decoder_layers=2", learner),
    "pretraining.decoder_dim": (MAE, "pretraining.decoder_dim=16", learner),
    "pretraining.decoder_heads": (MAE, "pretraining.decoder_heads=1", learner),
    "pretraining.normalize_targets": (MAE, "pretraining.normalize_targets=false", learner),
    "text.config": "tasks.contrastive_test.test_where_the_text_encoder_comes_from",
    "text.weights": "tasks.contrastive_test.test_where_the_text_encoder_comes_from",
    "text.tokenizer": "tasks.contrastive_test.test_where_the_text_encoder_comes_from",
    "text.frozen": "tasks.contrastive_test.test_a_run_from_published_weights",
    "distribution.kind": "engine.distribution_test.test_weights_and_slots_lie_as_laid_out",
    "distribution.devices": "engine.distribution_test.test_the_same_curve_on_any_devices",
    "distribution.model_devices": "engine.distribution_test.test_weights_and_slots_lie_as_laid_out",
    "distribution.shard_weights": "engine.distribution_test.test_weights_and_slots_lie_as_laid_out",
}


@pytest.fixture(scope="module")
def places(brief_recipe, tmp_path_factory):
    """Paths that replace the words in capitals."""
    folder = tmp_path_factory.mktemp("places")
    for place, count in (("PHOTOGRAPHS", 7), ("OTHERS", 8)):
        for name in ("ant", "bee"):
            (folder / place / name).mkdir(parents=True)
            for i in range(count):
                PIL.Image.new("L", (9, 8), 10 * i).save(folder / place / name / f"{i}.png")
    small = keras_vit.ViT(brief_recipe.model.config, input_shape=(8, 8, 1), classes=3)
    keras_vit.save_weights(small, folder / "WEIGHTS.npz", "google")
    paths = {place: folder / place for place in ("PHOTOGRAPHS", "OTHERS")} | {"WEIGHTS": folder / "WEIGHTS.npz"}
    return {place: str(path) for place, path in paths.items()}


def test_the_table_is_complete():
    fields = set()
    for section in dataclasses.fields(Recipe):
        inner = section.type
        names = [field.name for field in dataclasses.fields(inner)] if dataclasses.is_dataclass(inner) else [None]
        fields |= {section.name if name is None else f"{section.name}.{name}" for name in names}
    assert set(EFFECTS) == fields


# {(settings of the recipe, function that shows the effect): {field: changed settings}}.
CHANGES = collections.defaultdict(dict)
for field, effect in EFFECTS.items():
    if isinstance(effect, tuple):
        CHANGES[effect[0], effect[2]][field] = effect[1]


@pytest.mark.slow
@pytest.mark.parametrize("group", list(CHANGES))
def test_fields_have_an_effect(group, brief_recipe, places):
    has, shows = group

    def with_paths(assignments):
        for place, path in places.items():
            assignments = [text.replace(place, path) for text in assignments]
        return assignments

    before = override(brief_recipe, with_paths(has))
    shown = shows(before)
    assert shows(before) == shown  # Without this, random results would look like effects.
    for field, change in CHANGES[has, shows].items():
        assert change.startswith(field)
        assert shows(override(before, with_paths([change]))) != shown, field


def test_the_tests_that_are_named_exist():
    for place in sorted({effect for effect in EFFECTS.values() if isinstance(effect, str)}):
        module, _, name = place.rpartition(".")
        assert callable(getattr(importlib.import_module(f"tests.training.{module}"), name, None)), place
