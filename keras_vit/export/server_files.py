"""Writes configuration files of TensorFlow Serving and of OpenVINO Model Server next to the versions of a model."""

import json
import logging
import pathlib
import re
import string

from keras_vit.atomic_files import replace_file_atomically

logger = logging.getLogger(__name__)

_LOADED = (".xml", ".bin", ".onnx", ".pb", ".tflite")
"""Suffixes of the files of models that the server loads."""
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
    if version not in remaining.values() and remaining.setdefault("canary", version) != version:
        logger.warning(
            '"canary" is still version %d. After the server has loaded version %d, set "canary" to this version in %s.',
            *(remaining["canary"], version, path / "models.config"),
        )
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
            *(path, content),
        )


def is_served(path):
    """Whether a file, a `pathlib.Path`, is an OpenVINO file in a folder whose name is a version number."""
    return path.suffix == ".xml" and re.fullmatch(r"[1-9][0-9]*", path.resolve().parent.name) is not None


def check_version_folder(path):
    """Checks that a served version is the only model in its folder, and that no other server uses the versions.

    OpenVINO Model Server loads any model in the folder of a version, including SavedModels.

    Args:
        path: Path of a file that will be written, a `pathlib.Path`.
    """
    own = (path, path.with_suffix(".bin"))
    others = [file for file in path.parent.glob("*") if file.suffix in _LOADED and file not in own]
    served = [file for file in (path, *others) if is_served(file)]
    if served and others:
        raise ValueError(
            f"{path.parent} is the folder of a version for a server and contains {min(others).name}. The server loads "
            f"only one model of a version. Remove the other file, or give another version: "
            f"{path.parent.parent / '<version>' / path.name}"
        )
    if served and (path.resolve().parents[1] / "models.config").exists():
        raise ValueError(
            f"{path.parent.parent} contains the versions of a SavedModel for TensorFlow Serving (models.config). "
            f"OpenVINO Model Server would load these versions, too. Give another folder for the versions of the "
            f"OpenVINO file."
        )


def check_no_openvino_versions(folder):
    """Checks that the folder of a SavedModel's versions contains no versions of an OpenVINO file.

    Args:
        folder: Folder of all versions, a `pathlib.Path`.
    """
    others = [file for file in folder.glob("*/*.xml") if is_served(file)]
    if others:
        raise ValueError(
            f"{folder} contains the versions of an OpenVINO file ({min(others).relative_to(folder)}). OpenVINO Model "
            f"Server would load the SavedModel as one of them. Give another folder for the versions of the SavedModel."
        )


def write_server_files(path):
    """Writes `config.json` and `compose.yaml` of a server beside the folder of a version.

    The server serves the newest version under the name of the file. It computes in float32, as the comparison of the
    export does. If an operator has edited a file, it is not changed, and a warning is logged.

    Args:
        path: Path of a file, a `pathlib.Path`. For a file that is not served, nothing is written.
    """
    if not is_served(path):
        return
    folder, name = path.resolve().parents[1], default_name(path.with_suffix(""))
    config = {
        "name": name,
        "base_path": f"/models/{name}",
        "plugin_config": {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"},
    }
    contents = {"model_config_list": [{"config": config}], "monitoring": {"metrics": {"enable": True}}}
    write_unless_edited(folder / "config.json", json.dumps(contents, indent=2) + "\n")
    write_unless_edited(folder / "compose.yaml", from_template("openvino_model_server/compose.yaml", name=name))
