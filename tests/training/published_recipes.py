"""Training settings in papers and their authors' code, as {name of a recipe: fields of the recipe}.

ViT: arXiv 2010.11929; its code: google-research/vision_transformer at c6de1e5. big_vision: google-research/big_vision
at 0127fb6. MAE: arXiv 2111.06377; its code: facebookresearch/mae at efb2a80. EVA-02: arXiv 2303.11331; its code:
baaivision/EVA at 006ca79. Visual Transformers: arXiv 2006.03677.
"""

_INCEPTION = {"augment.crop": "inception", "augment.crop_area": [0.05, 1], "augment.flip": True}
_ADAM = {"optimizer.kind": "adamw", "optimizer.momentum": 0.9, "optimizer.square_momentum": None}
_COSINE = {"schedule.decay": "cosine", "schedule.start": 0, "schedule.end": 0}

# ViT, Table 3 and appendix B.1. The end of the linear decay is from its code, utils.py.
_PRE_TRAINING = {
    **_INCEPTION,
    **_ADAM,
    "model.input_shape": None,
    "model.config.patch_size": 16,
    "model.config.hidden_dim": 768,
    "model.config.pooling": "token",
    "model.config.representation_dim": 768,
    "model.config.dropout_rate": 0.1,
    "schedule.warmup": "10000 steps",
    "fit.batch_size": 4096,
    "fit.loss": "softmax",
}
_IMAGENET21K = {
    **_PRE_TRAINING,
    "data.dataset": "records",
    "optimizer.learning_rate": 1e-3,
    "optimizer.weight_decay": 0.03,
    "optimizer.clip_norm": None,
    "schedule.decay": "linear",
    "schedule.end": 1e-5,
    "fit.epochs": 90,
}

# big_vision, configs/vit_i1k.py, vit_i21k.py and vit_s16_i1k.py. Its weight decay is not multiplied by the learning
# rate. A recipe's weight decay is.
_BIG_VISION = {
    **_INCEPTION,
    **_ADAM,
    **_COSINE,
    "model.input_shape": None,
    "model.resize": 256,
    "model.config.patch_size": 16,
    "model.config.dropout_rate": 0,
    "augment.randaugment_ops": 2,
    "optimizer.learning_rate": 1e-3,
    "optimizer.weight_decay": 1e-4 / 1e-3,
    "optimizer.clip_norm": 1,
    "schedule.warmup": "10000 steps",
}
_AUGREG = {
    **_BIG_VISION,
    "model.config.hidden_dim": 768,
    "fit.loss": "sigmoid",
    "fit.epochs": 300,
    "fit.batch_size": 4096,
}

# ViT, Table 4 and appendix B.1.1. Warm-up and grid of learning rates are from its code, configs/common.py and vit.py.
_FINE_TUNING = {
    **_COSINE,
    "model.weights": "B/16@i21k",
    "model.input_shape": [384, 384, 3],
    "optimizer.kind": "sgd",
    "optimizer.momentum": 0.9,
    "optimizer.weight_decay": 0,
    "optimizer.clip_norm": 1,
    "optimizer.ema": 0,
    "schedule.warmup": "500 steps",
    "fit.batch_size": 512,
    "fit.loss": "softmax",
}
_FINE_TUNING_CROPPED = {**_FINE_TUNING, **_INCEPTION}
_FINE_TUNING_IMAGENET = {**_FINE_TUNING_CROPPED, "data.dataset": "imagenet2012", "fit.steps": 20_000}
# big_vision, configs/transfer.py.
_FINE_TUNING_SHORT = {
    **_FINE_TUNING_CROPPED,
    "optimizer.learning_rate": 0.003,
    "schedule.warmup": "100 steps",
    "fit.steps": 500,
}
_SEGMENTATION = {
    "task": "segmentation",
    "model.function": "VTFPN",
    "model.arguments.backbone": "R50",
    "optimizer.kind": "sgd",
    "optimizer.momentum": 0.9,
    "optimizer.clip_norm": None,
}

# Visual Transformers, section 5: the settings that both recipes share.
_VISUAL_TRANSFORMERS = {
    "model.input_shape": None,
    "model.resize": 256,
    "data.dataset": "imagenet2012",
    "augment.crop": "inception",
    "augment.crop_area": [0.08, 1],
    "augment.flip": True,
    "optimizer.momentum": 0.9,
    "optimizer.clip_norm": None,
    "schedule.decay": "exponential",
    "fit.loss": "softmax",
}

PUBLISHED = {
    "pretrain_imagenet_vt_r18": {  # Tables 2 to 7. Their momentum accumulates the weight decay.
        **_VISUAL_TRANSFORMERS,
        "model.function": "VTResNet18",
        "augment.autoaugment": False,
        "optimizer.kind": "sgd",
        "optimizer.learning_rate": 0.1,
        "optimizer.weight_decay": 4e-5 / (1 - 0.9),
        "optimizer.ema": 0,
        "schedule.warmup": "0%",
        "schedule.rate": 0.1,
        "schedule.every": "30 epochs",
        "fit.epochs": 90,
        "fit.batch_size": 256,
        "fit.label_smoothing": 0,
        "distillation.teacher": None,
    },
    "pretrain_imagenet_vt_r18_advanced": {  # Table 8. RMSProp's momenta and epsilon are from EfficientNet's code.
        **_VISUAL_TRANSFORMERS,
        "model.function": "VTResNet",
        "model.arguments.size": "VT-R18",
        "model.arguments.drop_path_rate": 1 - 0.9,
        "model.arguments.dropout_rate": 0.2,
        "augment.autoaugment": True,
        "optimizer.kind": "rmsprop",
        "optimizer.learning_rate": 0.16,
        "optimizer.square_momentum": 0.9,
        "optimizer.epsilon": 1e-3,
        "optimizer.ema": 0.99985,
        "schedule.warmup": "5 epochs",
        "schedule.start": 0.01,
        "schedule.rate": 0.9875,
        "schedule.every": "1 epoch",
        "fit.epochs": 400,
        "fit.batch_size": 2048,
        "fit.label_smoothing": 0.1,
        "distillation.weight": 0.8,
        "distillation.temperature": 1,
    },
    "pretrain_imagenet_b16": {
        **_PRE_TRAINING,
        **_COSINE,
        "data.dataset": "imagenet2012",
        "optimizer.learning_rate": 3e-3,
        "optimizer.weight_decay": 0.3,
        "optimizer.clip_norm": 1,
        "fit.epochs": 300,
    },
    "pretrain_imagenet21k_b16": {**_IMAGENET21K, "model.config.stem": None},
    "pretrain_imagenet21k_r50_b16": {
        **_IMAGENET21K,
        "model.config.patch_size": 1,
        "model.config.stem.stage_depths": [3, 4, 9],
    },
    "pretrain_imagenet_b16_augreg": {
        **_AUGREG,
        "data.dataset": "imagenet2012",
        "model.config.pooling": "token",
        "model.config.representation_dim": 768,
        "model.config.head_bias": -6.9,
        "augment.randaugment_magnitude": 15,
        "augment.mixup": 0.5,
    },
    "pretrain_imagenet21k_b16_augreg": {
        **_AUGREG,
        "data.dataset": "records",
        "model.config.pooling": "avg",
        "model.config.position_embedding": "learned_1d",
        "model.config.representation_dim": None,
        "model.config.head_bias": -10,
        "augment.randaugment_magnitude": 10,
        "augment.mixup": 0.2,
    },
    "pretrain_imagenet_s16": {
        **_BIG_VISION,
        "data.dataset": "imagenet2012",
        "model.config.hidden_dim": 384,
        "model.config.pooling": "avg",
        "model.config.position_embedding": "sincos_2d",
        "model.config.representation_dim": 384,
        "augment.randaugment_magnitude": 10,
        "augment.mixup": 0.2,
        "fit.loss": "softmax",
        "fit.epochs": 90,
        "fit.batch_size": 1024,
    },
    "finetune_imagenet_384": {**_FINE_TUNING_IMAGENET, "optimizer.learning_rate": 0.03},
    "finetune_imagenet_512": {  # ViT, section 4.1.
        **_FINE_TUNING_IMAGENET,
        "model.weights": "L/16@i21k",
        "model.input_shape": [512, 512, 3],
        "optimizer.learning_rate": 0.01,
        "optimizer.ema": 0.9999,
    },
    "finetune_imagenet_r50_b16": {  # The dropout rate is from ViT's code, configs/models.py.
        **_FINE_TUNING_IMAGENET,
        "model.weights": "R50+B/16@i21k",
        "model.changes.dropout_rate": 0.1,
        "optimizer.learning_rate": 0.03,
    },
    "finetune_cifar10_b16": {
        **_FINE_TUNING_CROPPED,
        "data.dataset": "cifar10",
        "optimizer.learning_rate": 0.01,
        "fit.steps": 10_000,
    },
    "finetune_cifar100": {
        **_FINE_TUNING_CROPPED,
        "data.dataset": "cifar100",
        "optimizer.learning_rate": 0.03,
        "fit.steps": 10_000,
    },
    "finetune_pets": {**_FINE_TUNING_SHORT, "data.dataset": "oxford_iiit_pet"},
    "finetune_flowers": {**_FINE_TUNING_SHORT, "data.dataset": "oxford_flowers102"},
    "finetune_vtab": {**_FINE_TUNING, "optimizer.learning_rate": 0.01, "fit.steps": 2_500},
    "finetune_mae_b16": {  # FINETUNE.md and defaults of main_finetune.py. Betas and epsilon are those of torch's AdamW.
        **_ADAM,
        **_COSINE,
        "model.weights": "B/16@mae",
        "model.changes.pooling": "avg",
        "model.changes.norm_placement": "after_pooling",
        "model.changes.drop_path_rate": 0.1,
        "augment.crop": "inception",
        "augment.crop_area": [0.08, 1],
        "augment.flip": True,
        "augment.randaugment_ops": 2,
        "augment.randaugment_magnitude": 9,
        "augment.erasing": 0.25,
        "augment.mixup": 0.8,
        "augment.cutmix": 1,
        "optimizer.learning_rate": 5e-4 * 1024 / 256,
        "optimizer.weight_decay": 0.05,
        "optimizer.epsilon": 1e-8,
        "optimizer.clip_norm": None,
        "optimizer.layer_decay": 0.65,
        "schedule.end": 1e-6,
        "schedule.warmup": "5 epochs",
        "fit.label_smoothing": 0.1,
        "fit.epochs": 100,
        "fit.batch_size": 1024,
    },
    "finetune_dinov3_s16": {  # EVA-02/asuka/README.md, command for eva02_S_pt_in21k_p14.
        **_ADAM,
        **_COSINE,
        "model.weights": "S/16@dinov3-lvd1689m",
        "model.input_shape": [256, 256, 3],
        "model.changes.pooling": "token",
        "model.changes.drop_path_rate": 0.1,
        "augment.crop": "inception",
        "augment.crop_area": [0.08, 1],
        "augment.flip": True,
        "augment.randaugment_ops": 2,
        "augment.randaugment_magnitude": 9,
        "augment.erasing": 0,
        "augment.mixup": 0,
        "augment.cutmix": 0,
        "optimizer.learning_rate": 1e-4,
        "optimizer.weight_decay": 0.05,
        "optimizer.epsilon": 1e-8,
        "optimizer.clip_norm": None,
        "optimizer.layer_decay": 0.8,
        "schedule.warmup": "5 epochs",
        "fit.label_smoothing": 0.1,
        "fit.epochs": 100,
        "fit.batch_size": 1024,
    },
    # VT, section 5.3, and Detectron2 (facebookresearch/detectron2 at 3169651), configs/Base-RCNN-FPN.yaml and
    # config/defaults.py. Batch size and learning rate are doubled, and the number of steps is halved.
    "coco_stuff_vt_fpn_r50": {
        **_SEGMENTATION,
        "model.input_shape": [800, 1216, 3],
        "augment.flip": True,
        "augment.scale_range": [640 / 800, 1],
        "optimizer.learning_rate": 2 * 0.02,
        "optimizer.weight_decay": 1e-4,
        "schedule.warmup": "1000 steps",
        "fit.steps": 90_000 // 2,
        "fit.batch_size": 2 * 16,
    },
    "lip_vt_fpn_r50": {
        **_SEGMENTATION,
        "model.input_shape": [473, 473, 3],
        "optimizer.learning_rate": 0.01,
        "optimizer.weight_decay": 5e-4,
        "fit.batch_size": 96,
    },
}
