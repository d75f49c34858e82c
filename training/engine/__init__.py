"""What trains a model: devices, steps, schedules and a run from its recipe to its report."""
