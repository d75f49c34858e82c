"""timm's and transformers' models, run with torch."""

import functools
import os

from benchmarks.contenders.keras_models import CLASSES, DINOV3

TIMM_SIZES = {"Ti": "tiny", "S": "small", "B": "base", "L": "large"}


def build_timm(job):
    """The same ViT of timm."""
    import timm

    size, patch = job.model.removeprefix(DINOV3).split("/")
    if job.model.startswith(DINOV3):
        name = f"vit_{TIMM_SIZES[size]}_patch{patch}_dinov3_qkvb"
        return timm.create_model(name, img_size=job.size, num_classes=CLASSES, global_pool="token")
    name = "vit_base_r50_s16" if size == "R50+B" else f"vit_{TIMM_SIZES[size]}_patch{patch}"
    return timm.create_model(f"{name}_224", img_size=job.size, num_classes=CLASSES)


def build_transformers(job):
    """The same ViT of transformers."""
    import transformers

    import keras_vit

    ours = keras_vit.VARIANTS[job.model]
    config = transformers.ViTConfig(
        hidden_size=ours.hidden_dim,
        num_hidden_layers=ours.num_layers,
        num_attention_heads=ours.num_heads,
        intermediate_size=ours.mlp_dim,
        image_size=job.size,
        patch_size=ours.patch_size,
        num_labels=CLASSES,
        attn_implementation="sdpa",
    )
    model = transformers.ViTForImageClassification(config)
    model.forward = functools.partial(_logits, model.forward)
    return model


def _logits(forward, images):
    return forward(pixel_values=images).logits


def open_torch(job, build, compiled=False):
    """A forward pass, or a training step with AdamW."""
    os.environ["KERAS_BACKEND"] = "torch"  # TensorFlow and torch in one process can crash it.
    import torch

    from benchmarks.provenance import processor

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    on_gpu = torch.cuda.is_available()
    where = "cuda" if on_gpu else "cpu"
    torch.set_float32_matmul_precision("high")  # The default of TensorFlow and JAX on a GPU.
    model = build(job).to(where)
    model = model.train() if job.work == "train" else model.eval()
    optimizer = torch.optim.AdamW(model.parameters())
    run = torch.compile(model, mode="max-autotune" if on_gpu else "default") if compiled else model
    in_bfloat16 = torch.autocast(where, torch.bfloat16, enabled=job.precision == "bfloat16")
    labels = torch.arange(2**12, device=where) % CLASSES

    @functools.lru_cache(maxsize=1)
    def batch(size):
        return torch.randn(size, 3, job.size, job.size, device=where)

    def step(images):
        if job.work == "forward":
            with torch.inference_mode(), in_bfloat16:
                return run(images)
        optimizer.zero_grad()
        with in_bfloat16:
            loss = torch.nn.functional.cross_entropy(run(images), labels[: len(images)])
        loss.backward()
        optimizer.step()
        return loss

    def make_steps(batch_size, steps):
        for _ in range(steps):
            result = step(batch(batch_size))
        if steps:
            result.detach().float().sum().item()  # Waits for all steps.

    return make_steps, torch.cuda.get_device_name() if on_gpu else processor()
