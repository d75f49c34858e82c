"""Writes configuration files of OpenVINO Model Server next to the versions of an OpenVINO file."""

import json
import re

from keras_vit.export.operator_files import default_name, from_template, write_unless_edited

_LOADED = (".xml", ".bin", ".onnx", ".pb", ".tflite")
"""Suffixes of the files of models that the server loads."""


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
