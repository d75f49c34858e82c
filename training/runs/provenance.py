"""The commit, the versions and the processor of a run."""

import os
import pathlib
import platform
import subprocess
from importlib.metadata import version


def git_state():
    """The commit and the changed files of this clone, or `None` if Git is missing or this is not a clone."""
    root = pathlib.Path(__file__).parent

    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed_files": git("status", "--porcelain").splitlines()}
    except (OSError, subprocess.CalledProcessError):
        return None


def installed_version(package):
    """The version of a package. TensorFlow is asked itself, because it can also be installed as `tensorflow-cpu`."""
    if package == "tensorflow":
        import tensorflow

        return tensorflow.__version__
    return version(package)


def processor(cores=None):
    """The processor and a number of cores. `None`: the number that this process may use."""
    path = pathlib.Path("/proc/cpuinfo")
    first = path.read_text().split("\n\n")[0] if path.is_file() else ""  # What Linux reports for the first processor.
    info = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    # On many virtual machines the name is only a brand, and generations of a brand differ by a factor of two.
    generation = [f"{key.removeprefix('cpu ')} {info[key]}" for key in ("cpu family", "model") if key in info]
    name = info.get("model name", platform.machine()) + (f" ({', '.join(generation)})" if generation else "")
    cores = cores or len(usable_cores())
    return f"{name}, {cores} core{'s' if cores > 1 else ''}"


def usable_cores():
    """The numbers of the processor's cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Not available on macOS and Windows.
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
