"""Readers of data sets: TFDS, folders of photographs and masks, TFRecord shards, and generated images."""
