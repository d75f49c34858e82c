"""A pytest plugin: imports PyTorch's packages before Keras imports TensorFlow.

The other way round, Triton's LLVM finds TensorFlow's and the process dies. Missing packages are an error here: the
comparisons must not be skipped silently.
"""

import timm
import torch
import transformers

__all__ = ["timm", "torch", "transformers"]
