"""CIFAR-10: what a Vision Transformer learns in an hour of two CPU cores, and from published weights."""
