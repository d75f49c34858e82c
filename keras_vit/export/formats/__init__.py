"""The formats of `export_model`: each module writes and opens the files of one format."""
