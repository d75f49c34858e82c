"""Mutates weight files, images and assignments, and lists what is neither read nor refused with a documented error.

Cases are numbered: a seed and a number make the same case again. They run in other processes, to find crashes too.
Command: make robustness ARGS="--weights 30000 --images 20000 --assignments 20000"
"""
