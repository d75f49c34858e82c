"""Where each pixel has a class: masks, losses, metrics, evaluation, colours and report."""
