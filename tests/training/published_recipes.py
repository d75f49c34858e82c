"""Training settings in papers and their authors' code, as {name of a recipe: fields of the recipe}.

ViT: arXiv 2010.11929; its code: google-research/vision_transformer at c6de1e5. big_vision: google-research/big_vision
at 0127fb6. MAE: arXiv 2111.06377; its code: facebookresearch/mae at efb2a80. EVA-02: arXiv 2303.11331; its code:
baaivision/EVA at 006ca79. Visual Transformers: arXiv 2006.03677.
"""

import functools
import operator


def fields(*parts, **sections):
    """{path of a field: value} of a recipe. Later arguments replace the fields of earlier ones."""
    named = [{f"{section}.{name}": value for name, value in part.items()} for section, part in sections.items()]
    return functools.reduce(operator.or_, [*parts, *named])


_INCEPTION = fields(augment={"crop": "inception", "crop_area": [0.05, 1], "flip": True})
_ADAM = fields(optimizer={"kind": "adamw", "momentum": 0.9, "square_momentum": None})
_COSINE = fields(schedule={"decay": "cosine", "start": 0, "end": 0})

# ViT, Table 3 and appendix B.1. The end of the linear decay is from its code, utils.py.
_PRE_TRAINING = fields(
    _INCEPTION,
    _ADAM,
    model={
        "input_shape": None,
        "config.patch_size": 16,
        "config.hidden_dim": 768,
        "config.pooling": "token",
        "config.representation_dim": 768,
        "config.dropout_rate": 0.1,
    },
    schedule={"warmup": "10000 steps"},
    fit={"batch_size": 4096, "loss": "softmax"},
)
_IMAGENET21K = fields(
    _PRE_TRAINING,
    data={"dataset": "records"},
    optimizer={"learning_rate": 1e-3, "weight_decay": 0.03, "clip_norm": None},
    schedule={"decay": "linear", "end": 1e-5},
    fit={"epochs": 90},
)

# big_vision, configs/vit_i1k.py, vit_i21k.py and vit_s16_i1k.py. Its weight decay is not multiplied by the learning
# rate. A recipe's weight decay is.
_BIG_VISION = fields(
    _INCEPTION,
    _ADAM,
    _COSINE,
    model={"input_shape": None, "resize": 256, "config.patch_size": 16, "config.dropout_rate": 0},
    augment={"randaugment_ops": 2},
    optimizer={"learning_rate": 1e-3, "weight_decay": 1e-4 / 1e-3, "clip_norm": 1},
    schedule={"warmup": "10000 steps"},
)
_AUGREG = fields(
    _BIG_VISION, model={"config.hidden_dim": 768}, fit={"loss": "sigmoid", "epochs": 300, "batch_size": 4096}
)

# ViT, Table 4 and appendix B.1.1. Warm-up and grid of learning rates are from its code, configs/common.py and vit.py.
_FINE_TUNING = fields(
    _COSINE,
    model={"weights": "B/16@i21k", "input_shape": [384, 384, 3]},
    optimizer={"kind": "sgd", "momentum": 0.9, "weight_decay": 0, "clip_norm": 1, "ema": 0},
    schedule={"warmup": "500 steps"},
    fit={"batch_size": 512, "loss": "softmax"},
)
_FINE_TUNING_CROPPED = fields(_FINE_TUNING, _INCEPTION)
_FINE_TUNING_IMAGENET = fields(_FINE_TUNING_CROPPED, data={"dataset": "imagenet2012"}, fit={"steps": 20_000})

# big_vision, configs/transfer.py.
_FINE_TUNING_SHORT = fields(
    _FINE_TUNING_CROPPED, optimizer={"learning_rate": 0.003}, schedule={"warmup": "100 steps"}, fit={"steps": 500}
)

# The settings that MAE and EVA-02 share.
_FINE_TUNING_AUGMENTED = fields(
    _ADAM,
    _COSINE,
    augment={
        "crop": "inception",
        "crop_area": [0.08, 1],
        "flip": True,
        "randaugment_ops": 2,
        "randaugment_magnitude": 9,
    },
    optimizer={"weight_decay": 0.05, "epsilon": 1e-8, "clip_norm": None},
    schedule={"warmup": "5 epochs"},
    fit={"label_smoothing": 0.1, "epochs": 100, "batch_size": 1024},
)
_SEGMENTATION = fields(
    {"task": "segmentation"},
    model={"function": "VTFPN", "arguments.backbone": "R50"},
    optimizer={"kind": "sgd", "momentum": 0.9, "clip_norm": None},
)

# Visual Transformers, section 5: the settings that both recipes share.
_VISUAL_TRANSFORMERS = fields(
    model={"input_shape": None, "resize": 256},
    data={"dataset": "imagenet2012"},
    augment={"crop": "inception", "crop_area": [0.08, 1], "flip": True},
    optimizer={"momentum": 0.9, "clip_norm": None},
    schedule={"decay": "exponential"},
    fit={"loss": "softmax"},
)

PUBLISHED = {
    # Tables 2 to 7. Their momentum accumulates the weight decay.
    "pretrain_imagenet_vt_r18": fields(
        _VISUAL_TRANSFORMERS,
        model={"function": "VTResNet18"},
        augment={"autoaugment": False},
        optimizer={"kind": "sgd", "learning_rate": 0.1, "weight_decay": 4e-5 / (1 - 0.9), "ema": 0},
        schedule={"warmup": "0%", "rate": 0.1, "every": "30 epochs"},
        fit={"epochs": 90, "batch_size": 256, "label_smoothing": 0},
        distillation={"teacher": None},
    ),
    # Table 8. RMSProp's momenta and epsilon are from EfficientNet's code.
    "pretrain_imagenet_vt_r18_advanced": fields(
        _VISUAL_TRANSFORMERS,
        model={
            "function": "VTResNet",
            "arguments.size": "VT-R18",
            "arguments.drop_path_rate": 1 - 0.9,
            "arguments.dropout_rate": 0.2,
        },
        augment={"autoaugment": True},
        optimizer={"kind": "rmsprop", "learning_rate": 0.16, "square_momentum": 0.9, "epsilon": 1e-3, "ema": 0.99985},
        schedule={"warmup": "5 epochs", "start": 0.01, "rate": 0.9875, "every": "1 epoch"},
        fit={"epochs": 400, "batch_size": 2048, "label_smoothing": 0.1},
        distillation={"weight": 0.8, "temperature": 1},
    ),
    "pretrain_imagenet_b16": fields(
        _PRE_TRAINING,
        _COSINE,
        data={"dataset": "imagenet2012"},
        optimizer={"learning_rate": 3e-3, "weight_decay": 0.3, "clip_norm": 1},
        fit={"epochs": 300},
    ),
    "pretrain_imagenet21k_b16": fields(_IMAGENET21K, model={"config.stem": None}),
    "pretrain_imagenet21k_r50_b16": fields(
        _IMAGENET21K, model={"config.patch_size": 1, "config.stem.stage_depths": [3, 4, 9]}
    ),
    "pretrain_imagenet_b16_augreg": fields(
        _AUGREG,
        data={"dataset": "imagenet2012"},
        model={"config.pooling": "token", "config.representation_dim": 768, "config.head_bias": -6.9},
        augment={"randaugment_magnitude": 15, "mixup": 0.5},
    ),
    "pretrain_imagenet21k_b16_augreg": fields(
        _AUGREG,
        data={"dataset": "records"},
        model={
            "config.pooling": "avg",
            "config.position_embedding": "learned_1d",
            "config.representation_dim": None,
            "config.head_bias": -10,
        },
        augment={"randaugment_magnitude": 10, "mixup": 0.2},
    ),
    "pretrain_imagenet_s16": fields(
        _BIG_VISION,
        data={"dataset": "imagenet2012"},
        model={
            "config.hidden_dim": 384,
            "config.pooling": "avg",
            "config.position_embedding": "sincos_2d",
            "config.representation_dim": 384,
        },
        augment={"randaugment_magnitude": 10, "mixup": 0.2},
        fit={"loss": "softmax", "epochs": 90, "batch_size": 1024},
    ),
    "finetune_imagenet_384": fields(_FINE_TUNING_IMAGENET, optimizer={"learning_rate": 0.03}),
    # ViT, section 4.1.
    "finetune_imagenet_512": fields(
        _FINE_TUNING_IMAGENET,
        model={"weights": "L/16@i21k", "input_shape": [512, 512, 3]},
        optimizer={"learning_rate": 0.01, "ema": 0.9999},
    ),
    # The dropout rate is from ViT's code, configs/models.py.
    "finetune_imagenet_r50_b16": fields(
        _FINE_TUNING_IMAGENET,
        model={"weights": "R50+B/16@i21k", "changes.dropout_rate": 0.1},
        optimizer={"learning_rate": 0.03},
    ),
    "finetune_cifar10_b16": fields(
        _FINE_TUNING_CROPPED, data={"dataset": "cifar10"}, optimizer={"learning_rate": 0.01}, fit={"steps": 10_000}
    ),
    "finetune_cifar100": fields(
        _FINE_TUNING_CROPPED, data={"dataset": "cifar100"}, optimizer={"learning_rate": 0.03}, fit={"steps": 10_000}
    ),
    "finetune_pets": fields(_FINE_TUNING_SHORT, data={"dataset": "oxford_iiit_pet"}),
    "finetune_flowers": fields(_FINE_TUNING_SHORT, data={"dataset": "oxford_flowers102"}),
    "finetune_vtab": fields(_FINE_TUNING, optimizer={"learning_rate": 0.01}, fit={"steps": 2_500}),
    # FINETUNE.md and defaults of main_finetune.py. Betas and epsilon are those of torch's AdamW.
    "finetune_mae_b16": fields(
        _FINE_TUNING_AUGMENTED,
        model={
            "weights": "B/16@mae",
            "changes.pooling": "avg",
            "changes.norm_placement": "after_pooling",
            "changes.drop_path_rate": 0.1,
        },
        augment={"erasing": 0.25, "mixup": 0.8, "cutmix": 1},
        optimizer={"learning_rate": 5e-4 * 1024 / 256, "layer_decay": 0.65},
        schedule={"end": 1e-6},
    ),
    # EVA-02/asuka/README.md, command for eva02_S_pt_in21k_p14.
    "finetune_dinov3_s16": fields(
        _FINE_TUNING_AUGMENTED,
        model={
            "weights": "S/16@dinov3-lvd1689m",
            "input_shape": [256, 256, 3],
            "changes.pooling": "token",
            "changes.drop_path_rate": 0.1,
        },
        augment={"erasing": 0, "mixup": 0, "cutmix": 0},
        optimizer={"learning_rate": 1e-4, "layer_decay": 0.8},
    ),
    # VT, section 5.3, and Detectron2 (facebookresearch/detectron2 at 3169651), configs/Base-RCNN-FPN.yaml and
    # config/defaults.py. Batch size and learning rate are doubled, and the number of steps is halved.
    "coco_stuff_vt_fpn_r50": fields(
        _SEGMENTATION,
        model={"input_shape": [800, 1216, 3]},
        augment={"flip": True, "scale_range": [640 / 800, 1]},
        optimizer={"learning_rate": 2 * 0.02, "weight_decay": 1e-4},
        schedule={"warmup": "1000 steps"},
        fit={"steps": 90_000 // 2, "batch_size": 2 * 16},
    ),
    "lip_vt_fpn_r50": fields(
        _SEGMENTATION,
        model={"input_shape": [473, 473, 3]},
        optimizer={"learning_rate": 0.01, "weight_decay": 5e-4},
        fit={"batch_size": 96},
    ),
}
