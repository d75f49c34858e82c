"""The formats of `export_model`: each module writes, quantizes and opens the files of one format."""
