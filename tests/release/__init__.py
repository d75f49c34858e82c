"""Checks of the package and of the checkout before a release: `make package-check`, `make release-check`."""

import pathlib
import runpy
import subprocess

ROOT = pathlib.Path(__file__).parents[2]
SETUP = runpy.run_path(str(ROOT / "setup.py"))  # Its functions. They know the version without importing keras_vit.


def git(*arguments):
    """The lines that a git command prints."""
    process = subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return process.stdout.splitlines()
