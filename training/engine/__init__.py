"""The training engine: devices, the training step, schedules, and whole runs from recipe to report."""
