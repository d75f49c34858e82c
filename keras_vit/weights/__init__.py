"""Published weights: found, read, renamed, adapted, assigned."""
