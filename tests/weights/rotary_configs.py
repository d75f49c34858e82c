"""Rotary positions of published models, for the tests of their layouts."""

import keras_vit

DINOV3 = keras_vit.RotaryConfig()
EVA02 = keras_vit.RotaryConfig(base=10000.0, layout="interleaved", coordinates="grid", reference_grid=(16, 16))
GRID = {"layout": "interleaved", "coordinates": "grid", "axis_order": "xy"}
PE = keras_vit.RotaryConfig(base=10000.0, reference_grid=(32, 32), **GRID)
MIXED = keras_vit.RotaryConfig(kind="mixed", base=10.0, **GRID)
