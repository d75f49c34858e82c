"""The product of two matrices. Its rate is the reference for the shares of all contenders."""

import shutil

_SIZES = (8 * 197, 768, 3072)
"""Rows, inner dimension and columns, as in the MLP of B/16 for 8 images."""
_SIZES_ON_A_GPU = (8192, 8192, 8192)
"""Large enough to keep a whole GPU busy."""


def open_matrix_product(job):
    """The product of two matrices on the device of the contenders, in float32 if the job is in int8."""
    # On CPUs torch is as fast as TensorFlow only on Intel. Importing both can crash the process.
    return _with_torch(job) if _has_gpu() else with_tensorflow(job)


def _has_gpu():
    return shutil.which("nvidia-smi") is not None


def _sizes():
    return _SIZES_ON_A_GPU if _has_gpu() else _SIZES


def _with_torch(job):
    import torch

    torch.set_float32_matmul_precision("high")
    rows, inner, columns = _sizes()
    like = {"device": "cuda", "dtype": torch.bfloat16 if job.precision == "bfloat16" else torch.float32}
    one, other = torch.randn(rows, inner, **like), torch.randn(inner, columns, **like)

    def make_steps(batch_size, steps):
        for _ in range(steps):
            product = one @ other
        if steps:
            product[0, 0].item()  # Waits for all products.

    return make_steps, torch.cuda.get_device_name()


def with_tensorflow(job):
    """The product on CPUs."""
    import tensorflow as tf

    from benchmarks.provenance import processor

    rows, inner, columns = _sizes()
    dtype = tf.bfloat16 if job.precision == "bfloat16" else tf.float32
    one, other = tf.random.normal((rows, inner), dtype=dtype), tf.random.normal((inner, columns), dtype=dtype)

    def make_steps(batch_size, steps):
        for _ in range(steps):
            tf.matmul(one, other)

    return make_steps, processor()


def flops_of_product():
    """Floating point operations of one step of `open_matrix_product`."""
    rows, inner, columns = _sizes()
    return 2 * rows * inner * columns
