"""A pytest plugin: imports PyTorch's packages before Keras imports TensorFlow.

In the other order, Triton's LLVM collides with TensorFlow's, and the process dies. A missing package is an error here,
because the comparisons must not be skipped silently.
"""

import timm
import torch
import transformers

__all__ = ["timm", "torch", "transformers"]
