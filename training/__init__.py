"""Recipes and the command line that runs them: `python -m training`."""

import sys

MOVED = {
    "assignments": "recipe.assignments",
    "config": "recipe.config",
    "evaluate": "evaluation.classification",
    "fewshot": "evaluation.fewshot",
    "metrics": "evaluation.metrics",
    "models": "engine.models",
    "opening": "runs.opening",
    "pipeline": "data.pipeline",
    "report": "reports.classification",
    "representations": "evaluation.representations",
    "sources": "data.sources",
    "subsets": "data.subsets",
    "tables": "reports.tables",
    "train": "engine.train",
}
"""{name of a module in version 0.1: new name}"""


class _MovedModules:
    """Import finder that raises an error with the new name if a module is imported by its old name."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        package, _, module = name.partition(".")
        if package == __name__ and module in MOVED:
            new = f"{package}.{MOVED[module]}"
            raise ModuleNotFoundError(f"{name} has moved. Write: from {new} import …", name=name)


sys.meta_path.append(_MovedModules)
