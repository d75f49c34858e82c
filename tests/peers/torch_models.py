"""What the comparisons with PyTorch's models share: random weights, and running them."""

import numpy as np
import torch


def randomize(model, seed=0):
    """Random values for all weights, also for those that start at zero or one; returns the model, in evaluation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_scale = parameter.ndim == 1 and name.endswith(("weight", "gamma", "lambda1"))
            parameter.copy_(1 + 0.1 * noise if is_scale else noise * min(0.3, parameter[0].numel() ** -0.5))
    return model.eval()


def run(model, images, **arguments):
    """Outputs of a PyTorch model for images (B, H, W, C)."""
    with torch.no_grad():
        return model(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), **arguments)


def random_images(height, width, channels=3, seed=1):
    return np.random.default_rng(seed).normal(size=(2, height, width, channels)).astype("float32")
