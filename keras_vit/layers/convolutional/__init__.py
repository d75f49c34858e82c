"""Layers of ResNets and of the networks that Visual Transformers are compared with."""
