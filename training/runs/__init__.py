"""The folder of a run and its checkpoints."""
