"""The result of `training.planning.plan`: memory and FLOPs per device, and which accelerators have enough memory."""

import dataclasses

from training.recipe.config import Recipe

UTILIZATION = 0.4
"""Assumed fraction of an accelerator's peak FLOPs that a run reaches."""


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A device. Its data sheet gives `peak`, the dense bfloat16 FLOPs per second, and `memory`, in bytes."""

    name: str
    peak: float
    memory: float


# Sources: NVIDIA's data sheets of A100, H100 (SXM) and H200; "TPU v4" and "TPU v5e" in Google Cloud's documentation.
ACCELERATORS = (
    Accelerator("A100 40 GB", 312e12, 40e9),
    Accelerator("A100 80 GB", 312e12, 80e9),
    Accelerator("H100", 989e12, 80e9),
    Accelerator("H200", 989e12, 141e9),
    Accelerator("TPU v4", 275e12, 32e9),
    Accelerator("TPU v5e", 197e12, 16e9),
)


@dataclasses.dataclass(frozen=True)
class Memory:
    """The memory of one device, in bytes.

    Args:
        weights: The device's share of all weights, including those of a teacher.
        optimizer: The device's share of the optimizer's variables and of the moving average.
        gradients: The device's share of the gradients, as large as its share of the trainable weights.
        activations: Encoder activations kept for the backward pass, or `None` if there is no formula for the model.
        arguments: Arguments of the compiled step: the device's shares of the weights, the optimizer and the batch.
        temporaries: Temporary arrays of the compiled step, as allocated by XLA for CPUs.
    """

    weights: int
    optimizer: int
    gradients: int
    activations: int | None
    arguments: int
    temporaries: int

    @property
    def expected(self):
        """Bytes of weights, optimizer, gradients and activations, or `None` if the activations are unknown."""
        if self.activations is None:
            return None
        return self.weights + self.optimizer + self.gradients + self.activations

    @property
    def compiled(self):
        """Bytes that XLA for CPUs needs."""
        return self.arguments + self.temporaries


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run needs.

    Args:
        recipe: `training.recipe.config.Recipe` of the run.
        num_devices: Number of devices of all machines together.
        num_replicas: Number of copies of the model, over which a batch is split.
        images: Number of training images.
        images_origin: Origin of the number of training images, e.g. `"given"`.
        steps: Number of optimizer steps of the run.
        parameters: Number of parameters of the model.
        macs: Multiply-accumulates per image.
        memory: `Memory` of a device.
        flops: FLOPs of a device per step, as counted by XLA in the compiled program.
        collectives: {kind: (number of operations per step, bytes of their results on a device)}
    """

    recipe: Recipe
    num_devices: int
    num_replicas: int
    images: int
    images_origin: str
    steps: int
    parameters: int
    macs: int
    memory: Memory
    flops: float
    collectives: dict

    @property
    def expected_flops(self):
        """FLOPs of a device per step, by the formula of `training_flops`."""
        return training_flops(self.macs, self.recipe.fit.batch_size) / self.num_devices

    @property
    def total_flops(self):
        """FLOPs of all devices in the whole run."""
        return self.flops * self.num_devices * self.steps

    def device_hours(self, accelerator):
        """Hours of the run, summed over the devices."""
        return self.total_flops / (accelerator.peak * UTILIZATION) / 3600

    def fits(self, accelerator):
        """Whether a device has enough memory: `"yes"`, `"no"`, or `"perhaps"` if `expected` and `compiled` disagree."""
        compiled = self.memory.compiled
        low, high = sorted((self.memory.expected or compiled, compiled))
        return "yes" if high <= accelerator.memory else "no" if low > accelerator.memory else "perhaps"

    def __str__(self):
        return "\n\n".join((_run_text(self), _memory_text(self.memory), _work_text(self), _accelerators_text(self)))


def training_flops(macs, images):
    """6 x MACs x images: two FLOPs per MAC in the forward pass, and four in the backward pass.

    Other operations, e.g. norms, are not counted. If an epoch of JFT-300M has 303 million images, the results for ViTs
    are within 2.5 % of the exaFLOPs in Table 6 of arXiv 2010.11929, and those for ResNets are 3 to 4 % higher.

    Args:
        macs: Multiply-accumulates of the model for one image, as `keras_vit.profile` counts them.
        images: Total number of images of all steps.
    """
    return 6 * macs * images


def _run_text(plan):
    fit, options = plan.recipe.fit, plan.recipe.distribution
    kind = "" if options.kind == "none" else f" ({options.kind})"
    replicas = f", {plan.num_replicas} copies of the model" if plan.num_replicas != plan.num_devices else ""
    parts = f" in {fit.accumulation_steps} parts" if fit.accumulation_steps > 1 else ""
    return (
        f"{plan.recipe.name}: {plan.parameters:,} parameters, {plan.macs / 1e9:.3f} GMACs per image, {fit.precision}\n"
        f"{plan.num_devices} {'device' if plan.num_devices == 1 else 'devices'}{kind}{replicas}: "
        f"{fit.batch_size:,} images per step, {fit.batch_size / plan.num_replicas:,.0f} per copy{parts}\n"
        f"{plan.images:,} training images ({plan.images_origin}), {plan.steps:,} steps"
    )


def _memory_text(memory):
    rows = (
        ("weights", memory.weights),
        ("optimizer and moving average", memory.optimizer),
        ("gradients", memory.gradients),
        ("activations of the encoder, by formula", memory.activations),
        ("total", memory.expected),
        ("XLA for CPUs: arguments of the step", memory.arguments),
        ("XLA for CPUs: temporaries", memory.temporaries),
        ("XLA for CPUs: total", memory.compiled),
    )
    sizes = ((name, "unknown" if size is None else f"{size / 1e9:.3f}") for name, size in rows)
    return "Memory of each device, in GB\n" + "\n".join(f"  {name:<40}{size:>9}" for name, size in sizes)


def _work_text(plan):
    ratio = plan.flops / plan.expected_flops
    lines = [f"Each device in a step: {plan.flops / 1e12:.3f} TFLOPs, {ratio:.2f} x (6 x MACs x images)"]
    for kind, (count, size) in sorted(plan.collectives.items()):
        lines.append(f"  {kind}: {count:,}, with results of {size / 1e9:.3f} GB")
    return "\n".join([*lines, f"The whole run: {plan.total_flops / 1e18:.3g} exaFLOPs"])


def _accelerators_text(plan):
    lines = [
        f"{'accelerator':<12}{'TFLOP/s':>9}{'GB':>6}  {'fits':<8}{'device-hours':>14}{'hours':>10}",
        *(
            f"{a.name:<12}{a.peak / 1e12:>9.0f}{a.memory / 1e9:>6.0f}  {plan.fits(a):<8}"
            f"{plan.device_hours(a):>14,.1f}{plan.device_hours(a) / plan.num_devices:>10,.1f}"
            for a in ACCELERATORS
        ),
        f"Hours assume that {UTILIZATION:.0%} of the peak for dense bfloat16 are reached. float32 takes longer.",
        "The column fits is yes if both totals of memory fit into the accelerator, and no if neither total fits.",
        "The total of XLA for CPUs is only a rough estimate, because XLA for CPUs computes bfloat16 in float32, and",
        "because it fuses other operations than XLA for GPUs and TPUs.",
    ]
    return "\n".join(lines)
