"""Our models, KerasHub's and ZeroModels', run with Keras."""

import functools
import os

CLASSES = 1000
DINOV3 = "DINOv3-"
"""Start of the names of models with the structure of DINOv3, such as `"DINOv3-S/16"`."""


def build_ours(job, **config_changes):
    """Our model for a job, in the current precision of Keras. Fields of the config of a ViT can be changed."""
    import keras_vit

    shape = (job.size, job.size, 3)
    if job.model.startswith(DINOV3):
        fields = {"num_register_tokens": 4, "layer_scale": 1.0, "qkv_bias": "no_key", "layer_norm_epsilon": 1e-5}
        fields |= {"mlp": "gelu_exact", "position_embedding": "none", "rotary": keras_vit.RotaryConfig()}
        config = keras_vit.VARIANTS[job.model.removeprefix(DINOV3)].replace(**fields | config_changes)
        return keras_vit.ViT(config, input_shape=shape, classes=CLASSES)
    if job.model in keras_vit.VARIANTS:
        is_plain = keras_vit.VARIANTS[job.model].stem is None
        changes = {"crop_to_patches": True} if is_plain else {}  # The side need not be a multiple of the patch size.
        return keras_vit.ViT(job.model, input_shape=shape, classes=CLASSES, **changes, **config_changes)
    return getattr(keras_vit, job.model)(input_shape=shape, classes=CLASSES)


def build_keras_hub(job):
    """The same ViT of KerasHub."""
    import keras_hub

    import keras_vit

    config = keras_vit.VARIANTS[job.model.removeprefix(DINOV3)]
    if job.model.startswith(DINOV3):
        return _build_dinov3_of_keras_hub(config, (job.size, job.size, 3))
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(job.size, job.size, 3),
        patch_size=config.patch_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        hidden_dim=config.hidden_dim,
        mlp_dim=config.mlp_dim,
    )
    return keras_hub.models.ViTImageClassifier(backbone=backbone, num_classes=CLASSES, activation="softmax")


def _build_dinov3_of_keras_hub(config, shape):
    """KerasHub's DINOv3 with a classifier of the class token. KerasHub itself has no classifier for it."""
    import keras
    import keras_hub

    backbone = keras_hub.models.DINOV3Backbone(
        image_shape=shape,
        patch_size=config.patch_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        hidden_dim=config.hidden_dim,
        intermediate_dim=config.mlp_dim,
        num_register_tokens=4,
        use_mask_token=False,
        use_key_bias=False,
    )
    images = keras.Input(shape)
    return _with_classifier(images, backbone({"pixel_values": images}))


def build_zeromodels(job):
    """The same ViT of ZeroModels. ZeroModels itself has no classifier for DINOv3."""
    from zeromodels.models.dino_v3 import DinoV3ViTModel
    from zeromodels.models.vit import ViTImageClassify

    import keras_vit

    config = keras_vit.VARIANTS[job.model.removeprefix(DINOV3)]
    arguments = {
        "image_size": job.size,
        "patch_size": config.patch_size,
        "embed_dim": config.hidden_dim,
        "depth": config.num_layers,
        "num_heads": config.num_heads,
        "mlp_ratio": config.mlp_dim / config.hidden_dim,
    }
    if job.model.startswith(DINOV3):
        backbone = DinoV3ViTModel(**arguments)
        return _with_classifier(backbone.input, backbone.output)
    return ViTImageClassify(**arguments, num_classes=CLASSES, classifier_activation="softmax")


def _with_classifier(images, tokens):
    """A model of two Keras tensors, with a classifier of the class token."""
    import keras

    return keras.Model(images, keras.layers.Dense(CLASSES, "softmax", dtype="float32")(tokens[:, 0]))


def open_keras(job, build, backend, jit_compile="auto"):
    """`model.predict` or `model.fit`, on TensorFlow with a dataset, on JAX with arrays."""
    os.environ["KERAS_BACKEND"] = backend
    import keras
    import numpy as np

    from benchmarks.provenance import device

    keras.config.set_dtype_policy({"bfloat16": "mixed_bfloat16"}.get(job.precision, job.precision))
    model = build(job)
    if job.work == "train" or jit_compile != "auto":
        model.compile("adamw", "sparse_categorical_crossentropy", jit_compile=jit_compile)
    rng = np.random.default_rng(0)

    @functools.lru_cache(maxsize=1)
    def batch(size):
        images = rng.standard_normal((size, job.size, job.size, 3), dtype="float32")
        return (images, rng.integers(0, CLASSES, size)) if job.work == "train" else (images,)

    def make_steps(batch_size, steps):
        if not steps:
            return
        if backend == "tensorflow":
            arguments = {"x": _dataset(batch(batch_size), batch_size, steps)}
        else:
            arrays = (np.concatenate([part] * steps) for part in batch(batch_size))
            arguments = dict(zip("xy", arrays, strict=False)) | {"batch_size": batch_size}
        if job.work == "train":
            model.fit(**arguments, verbose=0, shuffle=False)
        else:
            model.predict(**arguments, verbose=0)

    return make_steps, device()


def randomized(model):
    """The model, with random numbers added to its weights."""
    # Compilers remove operations with weights that are zero, such as new biases.
    import numpy as np

    rng = np.random.default_rng(0)
    for weight in model.weights:
        if "seed" not in weight.path:
            weight.assign(weight + rng.normal(0, 0.02, weight.shape))
    return model


def _dataset(batch, batch_size, steps):
    """A data set that repeats one batch. As in users' programs, the batch size is unknown at tracing."""
    import tensorflow as tf

    # If the data set is tuned, as by default, `predict` and `fit` may return some seconds after the last batch.
    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.Dataset.from_tensor_slices(batch).batch(batch_size).repeat(steps).with_options(options)
