"""The product of two matrices, at whose rate the others are measured."""

import os

_SIZES = (8 * 197, 768, 3072)
"""Rows, inner and columns: of the MLP of B/16, for 8 images."""


def open_matrix_product(job):
    """The product of two matrices, on the same device: what the others are a share of. In float32 for 8 bits."""
    import torch

    from benchmarks.provenance import processor

    on_gpu = torch.cuda.is_available()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.set_float32_matmul_precision("high")
    rows, inner, columns = _SIZES
    like = {
        "device": "cuda" if on_gpu else "cpu",
        "dtype": torch.bfloat16 if job.precision == "bfloat16" else torch.float32,
    }
    one, other = torch.randn(rows, inner, **like), torch.randn(inner, columns, **like)

    def make_steps(batch_size, steps):
        for _ in range(steps):
            product = one @ other
        if steps:
            product[0, 0].item()  # Waits for all of them.

    return make_steps, torch.cuda.get_device_name() if on_gpu else processor()


def flops_of_product():
    """Floating point operations of one step of `open_matrix_product`."""
    rows, inner, columns = _SIZES
    return 2 * rows * inner * columns
