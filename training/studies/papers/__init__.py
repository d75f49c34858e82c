"""The studies. Each module defines a `STUDY`."""

import importlib
import pkgutil

from training.errors import InputError

NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load(name):
    """Returns the `training.studies.study.Study` `name`. If there is none, an InputError lists all studies."""
    if name not in NAMES:
        from keras_vit.checks import did_you_mean

        raise InputError(f"There is no study {name!r}.{did_you_mean(name, NAMES)} Studies: {', '.join(NAMES)}")
    return importlib.import_module(f"training.studies.papers.{name}").STUDY
