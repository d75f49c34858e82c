"""Writes configuration files of TensorFlow Serving next to the versions of a model."""

import logging
import pathlib
import re
import string

from keras_vit.atomic_files import replace_file_atomically

logger = logging.getLogger(__name__)

TEMPLATES = pathlib.Path(__file__).parent / "templates"
_ENQUEUED_BATCHES = 1000
_XLA = """
      # Without this option, the server cannot load models that were exported with jit_compile=True.
      - --xla_cpu_compilation_enabled=true"""


def check_name(name):
    """Checks a model's name, which is part of addresses and configurations, and returns it."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.ASCII):
        raise ValueError(
            f"name must be made of letters, digits, '_', '-' and '.', because it is part of the server's addresses. "
            f"Received: {name!r}"
        )
    return name


def default_name(path):
    """Returns the name of the folder of all versions. Characters that are invalid in a model's name become `_`."""
    return re.sub(r"[^\w.-]+", "_", path.resolve().name, flags=re.ASCII).strip("_.-") or "model"


def write_operator_files(path, name, version, batch_sizes, jit_compile):
    """Writes the configurations of a server for the versions of a model.

    `models.config` serves the newest version and every version that has a label. The first exported version gets the
    label "stable", and the next version gets the label "canary". Existing labels are not moved: an operator decides
    which version the clients get. In addition, a running server can move a label only to a version that it already
    serves. If an operator has edited more than labels and version numbers, `models.config` is not changed, and a
    warning is logged.

    Args:
        path: Folder of all versions, a `pathlib.Path`.
        name: Name of the model for clients.
        version: Number of the exported version.
        batch_sizes: Expected batch sizes.
        jit_compile: Whether the model is compiled with XLA.
    """
    values = {
        "max_request": min(10_000, _ENQUEUED_BATCHES // 2 * max(batch_sizes)),
        "max_batch_size": max(batch_sizes),
        "enqueued_batches": _ENQUEUED_BATCHES,
        "name": name,
        "xla": _XLA if jit_compile else "",
    }
    for file in ("batching.config", "monitoring.config", "compose.yaml"):
        write_unless_edited(path / file, from_template(f"tensorflow_serving/{file}", **values))
    models = path / "models.config"
    text = models.read_text() if models.exists() else ""
    versions, labels = _read_models(text)
    may_replace = text == _format_models(name, versions, labels)
    labels = _labels(path, labels, version)
    content = _format_models(name, sorted({version, *labels.values()}), labels)
    write_unless_edited(models, content, may_replace)


def _labels(path, labels, version):
    """Returns the labels after an export, {label: version}."""
    remaining = {label: number for label, number in labels.items() if (path / str(number)).is_dir()}
    for label in labels.keys() - remaining.keys():
        logger.warning("The folder of version %d (%r in %s) is missing.", labels[label], label, path / "models.config")
    if "stable" not in remaining:
        remaining = {"stable": version} | remaining
    if version not in remaining.values() and "canary" in remaining:
        logger.warning(
            '"canary" is still version %d. After the server has loaded version %d, set "canary" to this version in %s.',
            remaining["canary"],
            version,
            path / "models.config",
        )
    elif version not in remaining.values():
        remaining["canary"] = version
    return remaining


def _format_models(name, versions, labels):
    return from_template(
        "tensorflow_serving/models.config",
        name=name,
        versions="\n".join(f"        versions: {version}" for version in versions),
        labels="\n".join(f'    version_labels {{ key: "{key}" value: {value} }}' for key, value in labels.items()),
    )


def from_template(file, **values):
    """Returns the text of a file in the folder `templates`, with `values` in place of `$name`."""
    return string.Template((TEMPLATES / file).read_text(encoding="utf-8")).substitute(values)


def _read_models(text):
    """Reads the version numbers and the labels, {label: version}, from the text of a `models.config`."""
    versions = re.findall(r"^ *versions: (\d+)$", text, re.MULTILINE)
    labels = re.findall(r'key: "(\w+)" value: (\d+)', text)
    return [int(number) for number in versions], {key: int(value) for key, value in labels}


def write_unless_edited(path, content, may_replace=False):
    """Writes a configuration file. If it exists with another content, it is not changed, and a warning is logged.

    Args:
        path: Path of the file, a `pathlib.Path`.
        content: Text of the file.
        may_replace: Whether an existing file is replaced.
    """
    if not path.exists() or (may_replace and path.read_text() != content):
        with replace_file_atomically(path) as unfinished:  # The server may read the file at any moment.
            unfinished.write_text(content)
    elif path.read_text() != content:
        logger.warning(
            "%s was edited or comes from an earlier export. It is not changed. Its new content would be:\n%s",
            path,
            content,
        )
