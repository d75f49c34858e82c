"""Post-training quantization: each module writes the int8 files of one format."""
