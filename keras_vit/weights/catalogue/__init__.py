"""The catalogue of published weights: their addresses, licences, image preparation and architectures.

Nothing here downloads. `entries.tsv` is the table of all files, one row each. `families.py` has the numerics and the
image preparation that the files of one code base share, and `sizes.py` the sizes that only published files have.
"""

from keras_vit.weights.catalogue.entries import ENTRIES
from keras_vit.weights.catalogue.families import FAMILIES
from keras_vit.weights.catalogue.lookup import get_entry, list_weights

__all__ = ["ENTRIES", "FAMILIES", "get_entry", "list_weights"]
