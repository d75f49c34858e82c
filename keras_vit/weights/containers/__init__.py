"""Files of named arrays. They are not trusted: sizes are checked before memory is allocated, and no code is run."""
