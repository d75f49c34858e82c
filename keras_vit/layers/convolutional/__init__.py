"""Layers of ResNets and of the networks to which Visual Transformers are compared."""
