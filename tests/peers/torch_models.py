"""Helpers for comparisons with PyTorch models: random weights, and forward passes."""

import numpy as np
import torch


def randomize(model, seed=0):
    """Sets all weights to random values, also those that start at zero or one; returns the model in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_scale = parameter.ndim == 1 and name.endswith(("weight", "gamma", "lambda1"))
            parameter.copy_(1 + 0.1 * noise if is_scale else noise * min(0.3, max(parameter[0].numel(), 1) ** -0.5))
    return model.eval()


def run(model, images, **arguments):
    """The outputs of a PyTorch model for images (B, H, W, C)."""
    with torch.no_grad():
        return model(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), **arguments)


def random_images(height, width, channels=3, seed=1):
    return np.random.default_rng(seed).normal(size=(2, height, width, channels)).astype("float32")
