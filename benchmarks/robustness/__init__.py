"""Mutates files of weights, their settings and cards, caches, images, recipes, configs and records.

Lists cases that are neither read nor refused with a documented error.

A seed and the number of a case reproduce it. Cases run in separate processes, so that crashes are found too.
Command: make robustness ARGS="--weights 30000 --images 20000 --assignments 20000"
"""
