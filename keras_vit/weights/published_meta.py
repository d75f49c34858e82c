"""Catalogue entries of the files that Meta published, and of their copies in other layouts.

Sources: the repositories facebookresearch/{deit,mae,dino,dinov2,moco-v3,ijepa}, huggingface/pytorch-image-models (timm)
and google-research/big_vision. The end of a name defines the kind of file. `-original` and `-finetuned`: Meta's `.pth`
files, which need torch. `-huggingface`: copies in the layout of transformers. `-bigvision`: copies in `.npz`. All other
names: timm's copies in safetensors. timm has no copies of MoCo v3 and I-JEPA, so for them it is Meta's `.pth.tar` file.
A file of I-JEPA has two encoders, of which the target encoder is read. The files for transformers have the other one.
Their names begin with `ijepa-context`.
"""

from keras_vit.architectures.spellings import SIZE_NAMES
from keras_vit.weights.catalogue_entry import build_entry, measured, split_variant

_META = "https://dl.fbaipublicfiles.com"


def meta_entries():
    """Yields all entries."""
    yield from _deit_entries()
    yield from _deit3_entries()
    yield from _mae_entries()
    yield from _dino_entries()
    yield from _dinov2_entries()
    yield from _mocov3_entries()
    yield from _ijepa_entries()


def _deit_entries():
    for variant, image_size, kind, digits, top1 in (
        ("Ti/16", 224, "", "a1311bcf", 72.2),
        ("S/16", 224, "", "cd65a155", 79.9),
        ("B/16", 224, "", "b5f2ef4d", 81.8),
        ("B/16", 384, "", "8de9b5d1", 82.9),
        ("Ti/16", 224, "distilled_", "b40b3cf7", 74.5),
        ("S/16", 224, "distilled_", "649709d9", 81.2),
        ("B/16", 224, "distilled_", "df68dfff", 83.4),
        ("B/16", 384, "distilled_", "d0272ac0", 85.2),
    ):
        name = f"deit_{SIZE_NAMES[variant.split('/')[0]]}_{kind}patch16_{image_size}"
        weights = "deit" + ("-distilled" if kind else "") + ("-384" if image_size == 384 else "")
        changes = {"distillation_token": True} if kind else {}
        top1 = measured(top1, f"DeiT README, {image_size} px")
        facts = ("deit", "2012.12877", 1000, image_size, top1)
        yield build_entry(variant, weights, f"hf://timm/{name}.fb_in1k", "timm", *facts, **changes)
        url = f"{_META}/deit/{name}-{digits}.pth"
        yield build_entry(variant, f"{weights}-original", url, "torch", *facts, **changes)
        hub = f"hf://facebook/{name.replace('_', '-')}"
        yield build_entry(variant, f"{weights}-huggingface", hub, "huggingface", *facts, **changes)


def _deit3_entries():
    for variant, image_size, *figures in (
        ("S/16", 224, 81.4, 83.1),
        ("S/16", 384, 83.4, 84.8),
        ("M/16", 224, 83.0, 84.5),
        ("B/16", 224, 83.8, 85.7),
        ("B/16", 384, 85.0, 86.7),
        ("L/16", 224, 84.9, 87.0),
        ("L/16", 384, 85.8, 87.7),
        ("H/14", 224, 85.2, 87.2),
    ):
        size, patch_size = split_variant(variant)
        size_name = SIZE_NAMES[size]
        for data, tag, top1 in zip(("i1k", "i21k-i1k"), ("in1k", "in22k_ft_in1k"), figures, strict=True):
            file = f"deit_3_{size_name}_{image_size}_{data.split('-')[0][1:]}"
            weights = f"deit3-{data}-{image_size}"
            facts = ("2204.07118", 1000, image_size)
            top1 = measured(top1, f"DeiT III README, {image_size} px")
            changes = {"layer_scale": 1e-4, "num_position_prefix_rows": 0}
            hub = f"hf://timm/deit3_{size_name}_patch{patch_size}_{image_size}.fb_{tag}"
            yield build_entry(variant, weights, hub, "timm", "deit3", *facts, top1, **changes)
            version = "_v1" if file == "deit_3_huge_224_21k" else ""
            url = f"{_META}/deit/{file}{version}.pth"
            yield build_entry(variant, f"{weights}-original", url, "torch", "deit3", *facts, top1, **changes)
            if size in ("S", "B", "L"):
                # These files were converted for big_vision, where a ViT has no layer scale and pixels are in [-1, 1].
                url = f"https://storage.googleapis.com/big_vision/zoo/deit3/bv_{file}.npz"
                weights = f"{weights}-bigvision"
                yield build_entry(variant, weights, url, "google", "big_vision", *facts, num_position_prefix_rows=0)


def _mae_entries():
    paper, licence = "2111.06377", "CC-BY-NC-4.0"
    changes = {"pooling": "avg", "class_token": True, "norm_placement": "after_pooling"}
    for variant, top1 in (("B/16", 83.66), ("L/16", 85.95), ("H/14", 86.93)):
        size, patch_size = split_variant(variant)
        size_name = SIZE_NAMES[size]
        for weights, url, format in (
            ("mae", f"hf://timm/vit_{size_name}_patch{patch_size}_224.mae", "timm"),
            ("mae-original", f"{_META}/mae/pretrain/mae_pretrain_vit_{size_name}.pth", "torch"),
            ("mae-huggingface", f"hf://facebook/vit-mae-{size_name}", "huggingface"),
        ):
            yield build_entry(variant, weights, url, format, "mae", paper, licence=licence)
        url = f"{_META}/mae/finetune/mae_finetuned_vit_{size_name}.pth"
        facts = ("torch", "mae", paper, 1000, 224, measured(top1, "MAE FINETUNE.md, 224 px"))
        yield build_entry(variant, "mae-finetuned", url, *facts, licence=licence, **changes)


def _dino_entries():
    for variant, file, top1 in (
        ("S/16", "dino_deitsmall16_pretrain", 77.0),
        ("S/8", "dino_deitsmall8_pretrain", 79.7),
        ("B/16", "dino_vitbase16_pretrain", 78.2),
        ("B/8", "dino_vitbase8_pretrain", 80.1),
    ):
        size, patch_size = split_variant(variant)
        facts = ("dino", "2104.14294", 0, 224, measured(top1, "DINO README, 224 px, linear probe"))
        for weights, url, format in (
            ("dino", f"hf://timm/vit_{SIZE_NAMES[size]}_patch{patch_size}_224.dino", "timm"),
            ("dino-original", f"{_META}/dino/{file}/{file}.pth", "torch"),
            ("dino-huggingface", f"hf://facebook/dino-vit{size.lower()}{patch_size}", "huggingface"),
        ):
            yield build_entry(variant, weights, url, format, *facts)


def _dinov2_entries():
    for variant, size_name, *figures in (
        ("S/14", "small", 81.1, 80.9),
        ("B/14", "base", 84.5, 84.6),
        ("L/14", "large", 86.3, 86.7),
        ("g-swiglu/14", "giant", 86.5, 87.1),
    ):
        model = f"dinov2_vit{size_name[0]}14"
        plain = {"layer_scale": 1.0} | ({"mlp": "swiglu"} if size_name == "giant" else {})
        registers = plain | {"num_register_tokens": 4}
        # In timm's files with registers, the class token already contains its position.
        timm_registers = registers | {"num_position_prefix_rows": 0}
        for weights, infix, family, paper, top1, changes, timm_changes in (
            ("dinov2", "", "dinov2", "2304.07193", figures[0], plain, plain),
            ("dinov2-reg4", "_reg4", "dinov2_registers", "2309.16588", figures[1], registers, timm_registers),
        ):
            facts = (family, paper, 0, 518, measured(top1, "DINOv2 README, linear probe"))
            hub = f"hf://timm/vit_{size_name}_patch14{infix}_dinov2.lvd142m"
            yield build_entry(variant, weights, hub, "timm", *facts, **timm_changes)
            url = f"{_META}/dinov2/{model}/{model}{infix}_pretrain.pth"
            yield build_entry(variant, f"{weights}-original", url, "torch", *facts, **changes)
            hub = f"hf://facebook/dinov2{'-with-registers' if infix else ''}-{size_name}"
            yield build_entry(variant, f"{weights}-huggingface", hub, "huggingface", *facts, **changes)


def _mocov3_entries():
    for variant, top1 in (("S/16", 73.2), ("B/16", 76.7)):
        run = f"vit-{variant[0].lower()}-300ep"
        # The small model has as many heads as the base model.
        facts = {"licence": "CC-BY-NC-4.0", **({"num_heads": 12} if variant == "S/16" else {})}
        for weights, prefix, classes in (("mocov3", "", 0), ("mocov3-linear", "linear-", 1000)):
            url = f"{_META}/moco-v3/{run}/{prefix}{run}.pth.tar"
            accuracy = measured(top1, "MoCo v3 README, 224 px, linear probe")
            yield build_entry(variant, weights, url, "torch", "mocov3", "2104.02057", classes, 224, accuracy, **facts)


def _ijepa_entries():
    for variant, data, image_size, file, hub in (
        ("H/14", "in1k", 224, "IN1K-vit.h.14-300e", "vith14_1k"),
        ("H/14", "in22k", 224, "IN22K-vit.h.14-900e", "vith14_22k"),
        ("H/16", "in1k", 448, "IN1K-vit.h.16-448px-300e", "vith16_1k"),
        ("g/16", "in22k", 224, "IN22K-vit.g.16-600e", "vitg16_22k"),
    ):
        weights, facts = f"{data}-{image_size}", ("ijepa", "2301.08243", 0, image_size)
        changes = {"licence": "CC-BY-NC-4.0", "pooling": "avg"}
        yield build_entry(variant, f"ijepa-{weights}", f"{_META}/ijepa/{file}.pth.tar", "torch", *facts, **changes)
        url = f"hf://facebook/ijepa_{hub}"
        resized = {"resize": (image_size, image_size), "crop": None, "interpolation": "bilinear"}
        pixels = {"mean": 0.5, "std": 0.5, **resized}
        yield build_entry(
            variant, f"ijepa-context-{weights}-huggingface", url, "huggingface", *facts, pixels=pixels, **changes
        )
