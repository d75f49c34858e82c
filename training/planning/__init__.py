"""What a run would need."""
