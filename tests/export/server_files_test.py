"""The files are parsed with TensorFlow Serving's messages and as `docker compose` parses them."""

import functools
import http.server
import json
import logging
import pathlib
import re
import socket
import subprocess
import threading

import pytest
import yaml
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, wrappers_pb2
from tensorflow_serving.config import model_server_config_pb2

from keras_vit.export.server_files import check_name, default_name, write_operator_files

FILES = {"models.config", "batching.config", "monitoring.config", "compose.yaml"}


def _message(name, **fields):
    """A message type of TensorFlow Serving that its Python package lacks.

    Args:
        name: Name of the message type.
        **fields: {name: (number, type)}. A type is one of `_TYPES`, `[type]` for a repeated field, a message of
            `wrappers.proto`, or a dictionary of fields.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package="tensorflow.serving", syntax="proto3")
    file.dependency.append("google/protobuf/wrappers.proto")
    _add_fields(file.message_type.add(name=name), fields)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tensorflow.serving.{name}"))


_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {"int64": _FIELD.TYPE_INT64, "string": _FIELD.TYPE_STRING, "bool": _FIELD.TYPE_BOOL}


def _add_fields(message, fields):
    for name, (number, kind) in fields.items():
        field = message.field.add(name=name, number=number, label=_FIELD.LABEL_OPTIONAL)
        if isinstance(kind, list):
            [kind] = kind
            field.label = _FIELD.LABEL_REPEATED
        if isinstance(kind, dict):
            _add_fields(message.nested_type.add(name=f"{name}_type"), kind)
            field.type, field.type_name = _FIELD.TYPE_MESSAGE, f"{name}_type"
        elif kind in _TYPES:
            field.type = _TYPES[kind]
        else:
            field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".google.protobuf.{kind}"


# tensorflow_serving/servables/tensorflow/session_bundle_config.proto
BATCHING = _message(
    "BatchingParameters",
    max_batch_size=(1, "Int64Value"),
    batch_timeout_micros=(2, "Int64Value"),
    max_enqueued_batches=(3, "Int64Value"),
    num_batch_threads=(4, "Int64Value"),
    thread_pool_name=(5, "StringValue"),
    allowed_batch_sizes=(6, ["int64"]),
    pad_variable_length_inputs=(7, "bool"),
    enable_large_batch_splitting=(8, "BoolValue"),
    max_execution_batch_size=(9, "Int64Value"),
)
# tensorflow_serving/config/monitoring_config.proto
MONITORING = _message("MonitoringConfig", prometheus_config=(1, {"enable": (1, "bool"), "path": (2, "string")}))


def _export(path, version, name="pets", jit_compile=False, batch_sizes=(1, 8, 24)):
    """Writes the files of an export, except the SavedModel."""
    (path / str(version)).mkdir(exist_ok=True)
    write_operator_files(path, name, version, batch_sizes, jit_compile)
    assert {child.name for child in path.iterdir() if child.is_file()} == FILES


def _model(path):
    """The model of `models.config`, and (versions, {label: version}) that are served."""
    text = (path / "models.config").read_text()
    config = text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
    [model] = config.model_config_list.config
    return model, (list(model.model_version_policy.specific.versions), dict(model.version_labels))


def _served(path):
    return _model(path)[1]


def _edit(path, *replacements):
    text = (path / "models.config").read_text()
    for old, new in replacements:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (path / "models.config").write_text(text)


def test_models_config(tmp_path):
    _export(tmp_path, 1, name="pets-1.0_b")
    model, served = _model(tmp_path)
    assert (model.name, model.base_path, model.model_platform) == ("pets-1.0_b", "/models/pets-1.0_b", "tensorflow")
    assert served == ([1], {"stable": 1})


@pytest.mark.parametrize("largest", [1, 24, 1024])
def test_batching_config(tmp_path, largest):
    _export(tmp_path, 1, batch_sizes=(1, largest))
    batching = text_format.Parse((tmp_path / "batching.config").read_text(), BATCHING())
    assert batching.enable_large_batch_splitting.value
    assert batching.max_execution_batch_size.value == largest
    assert batching.max_batch_size.value == (500 if largest == 1 else 10_000)
    # A split batch must fit into the queue.
    assert batching.max_batch_size.value <= batching.max_enqueued_batches.value * largest
    assert batching.batch_timeout_micros.value == 2000
    # By default there is one thread per core. With allowed batch sizes, an empty request would crash the server.
    assert {field.name for field, _ in batching.ListFields()} == {
        "max_batch_size",
        "enable_large_batch_splitting",
        "max_execution_batch_size",
        "batch_timeout_micros",
        "max_enqueued_batches",
    }


def test_monitoring_config(tmp_path):
    _export(tmp_path, 1)
    monitoring = text_format.Parse((tmp_path / "monitoring.config").read_text(), MONITORING())
    assert monitoring.prometheus_config.enable
    assert monitoring.prometheus_config.path == "/monitoring/prometheus/metrics"


def _service(path):
    composed = yaml.safe_load((path / "compose.yaml").read_text())
    assert list(composed) == ["services"]
    [service] = composed["services"].values()
    return service


def test_compose(tmp_path):
    _export(tmp_path, 1)
    service = _service(tmp_path)
    assert service["image"] == "tensorflow/serving:latest"
    assert service["ports"] == ["8500:8500", "8501:8501"]
    assert service["volumes"] == [".:/models/pets:ro"]
    assert service["environment"] == {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS": "1"}
    model, _ = _model(tmp_path)
    flags = dict(flag.removeprefix("--").split("=") for flag in service["command"])
    assert flags == {
        "model_config_file": f"{model.base_path}/models.config",
        "model_config_file_poll_wait_seconds": "60",
        "allow_version_labels_for_unavailable_models": "true",
        "enable_batching": "true",
        "batching_parameters_file": f"{model.base_path}/batching.config",
        "monitoring_config_file": f"{model.base_path}/monitoring.config",
    }


def test_what_is_compiled_needs_a_flag(tmp_path):
    _export(tmp_path, 1)
    flags = _service(tmp_path)["command"]
    (tmp_path / "compose.yaml").unlink()
    _export(tmp_path, 2, jit_compile=True)
    assert _service(tmp_path)["command"] == [*flags, "--xla_cpu_compilation_enabled=true"]


def test_compose_file_with_a_gpu(tmp_path):
    _export(tmp_path, 1)
    file = tmp_path / "compose.yaml"
    text = file.read_text()
    assert text.count("    # deploy: ") == 1
    file.write_text(text.replace("    # deploy: ", "    deploy: "))
    [device] = _service(tmp_path)["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


@pytest.fixture
def status_server(tmp_path_factory):
    """(port, file with the server's answer)"""
    folder = tmp_path_factory.mktemp("server") / "v1" / "models"
    folder.mkdir(parents=True)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder.parents[1])
    server = http.server.ThreadingHTTPServer(("localhost", 0), handler)
    threading.Thread(target=server.serve_forever).start()
    yield server.server_port, folder / "pets"
    server.shutdown()
    server.server_close()


def _health(path, port):
    kind, *command = _service(path)["healthcheck"]["test"]
    assert (kind, command[:2], len(command)) == ("CMD", ["bash", "-c"], 3)
    assert command[2].count("8501") == 1
    command[2] = command[2].replace("8501", str(port))
    return subprocess.run(command, capture_output=True, timeout=20).returncode


@pytest.mark.slow
def test_health_check(tmp_path, status_server):
    port, answer = status_server
    _export(tmp_path, 1)
    for states, code, healthy in (
        (["AVAILABLE"], "OK", True),
        (["END", "AVAILABLE"], "OK", True),
        (["LOADING"], "OK", False),
        (["END"], "UNAVAILABLE", False),
        ([], "OK", False),
    ):
        status = {"error_code": code, "error_message": ""}
        states = [{"version": "1", "state": state, "status": status} for state in states]
        answer.write_text(json.dumps({"model_version_status": states}, indent=1))
        assert (_health(tmp_path, port) == 0) == healthy, (states, code)


def test_health_check_while_nothing_listens(tmp_path):
    _export(tmp_path, 1)
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        assert _health(tmp_path, unused.getsockname()[1]) != 0


# A server allows this sequence of exports and label edits. It moves a label only to a version that it already serves
# (UpdateModelVersionLabelMap, tensorflow_serving/model_servers/server_core.cc), and it updates labels before it loads
# new versions.
PROMOTION = ('key: "stable" value: 1', 'key: "stable" value: 2'), ('key: "canary" value: 2', 'key: "previous" value: 1')


def test_versions_one_after_the_other(tmp_path, caplog):
    _export(tmp_path, 1)
    _export(tmp_path, 2)
    assert _served(tmp_path) == ([1, 2], {"stable": 1, "canary": 2})
    before = (tmp_path / "models.config").read_text()
    _edit(tmp_path, *PROMOTION)
    assert _served(tmp_path) == ([1, 2], {"stable": 2, "previous": 1})
    # Rolled back, and promoted again.
    _edit(tmp_path, *(pair[::-1] for pair in PROMOTION))
    assert (tmp_path / "models.config").read_text() == before
    _edit(tmp_path, *PROMOTION)
    _export(tmp_path, 3)
    assert _served(tmp_path) == ([1, 2, 3], {"stable": 2, "previous": 1, "canary": 3})
    _edit(tmp_path, ("        versions: 1\n", ""), ('    version_labels { key: "previous" value: 1 }\n', ""))
    _export(tmp_path, 2)  # The version is overwritten. Nothing else changes.
    assert _served(tmp_path) == ([2, 3], {"stable": 2, "canary": 3})
    assert not caplog.records


def test_a_label_never_moves_to_a_version_that_is_not_served_yet(tmp_path, caplog):
    served, clients = [], {}
    for version in range(1, 7):
        _export(tmp_path, version)
        versions, labels = _served(tmp_path)
        assert all(label not in clients or number in served for label, number in labels.items())
        assert version in versions
        assert set(labels.values()) <= set(versions)
        served, clients = versions, labels
    # Versions are removed if they have no label and are not the newest.
    assert (served, clients) == ([1, 2, 6], {"stable": 1, "canary": 2})
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 4
    assert messages[0].startswith('"canary" is still version 2. After the server has loaded version 3, set "canary" to')


def test_the_operator_moves_the_canary(tmp_path, caplog):
    for version in (1, 2, 3):
        _export(tmp_path, version)
    _edit(tmp_path, ('"canary" value: 2', '"canary" value: 3'), ("        versions: 2\n", ""))
    caplog.clear()
    _export(tmp_path, 3)
    assert _served(tmp_path) == ([1, 3], {"stable": 1, "canary": 3})
    assert not caplog.records


def test_label_of_a_version_that_is_gone(tmp_path, caplog):
    _export(tmp_path, 1)
    _export(tmp_path, 2)
    (tmp_path / "1").rmdir()
    _export(tmp_path, 3)
    assert _served(tmp_path) == ([2, 3], {"stable": 3, "canary": 2})
    [record] = caplog.records
    assert record.getMessage() == f"The folder of version 1 ('stable' in {tmp_path}/models.config) is missing."
    (tmp_path / "2").rmdir()
    _export(tmp_path, 4)
    assert _served(tmp_path) == ([3, 4], {"stable": 3, "canary": 4})


def test_labels_of_an_operator(tmp_path):
    _export(tmp_path, 1)
    _export(tmp_path, 7)
    line = '    version_labels { key: "canary" value: 7 }\n'
    _edit(tmp_path, (line, line + '    version_labels { key: "for_tests" value: 1 }\n'))
    _export(tmp_path, 8)
    assert _served(tmp_path) == ([1, 7, 8], {"stable": 1, "canary": 7, "for_tests": 1})


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("models.config", "# The versions", "# Mine: the versions"),
        ("models.config", "  }\n}\n", '  }\n  config { name: "other" base_path: "/models/other" }\n}\n'),
        ("batching.config", "2000", "500"),
        ("monitoring.config", "true", "false"),
        ("compose.yaml", '"8500:8500"', '"9500:8500"'),
    ],
)
def test_what_was_edited_stays_and_the_log_says_so(tmp_path, caplog, file, old, new):
    _export(tmp_path, 1)
    path = tmp_path / file
    edited = path.read_text().replace(old, new)
    assert edited != path.read_text()
    path.write_text(edited)
    others = {name: (tmp_path / name).read_text() for name in FILES - {file, "models.config"}}
    with caplog.at_level(logging.WARNING):
        _export(tmp_path, 2)
    assert path.read_text() == edited
    assert {name: (tmp_path / name).read_text() for name in others} == others
    [message] = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"{path} was edited or comes from an earlier export. It is not changed. Its new content")
    assert ("versions: 2" in message) == (file == "models.config")


def test_the_same_export_again_says_nothing(tmp_path, caplog):
    for version in (1, 2, 2, 1):
        _export(tmp_path, version)
    assert _served(tmp_path) == ([1, 2], {"stable": 1, "canary": 2})
    assert not caplog.records


def test_other_arguments_are_told_of(tmp_path, caplog):
    _export(tmp_path, 1)
    _export(tmp_path, 2, name="dogs", jit_compile=True)
    logged = [pathlib.Path(record.args[0]).name for record in caplog.records]
    assert sorted(logged) == ["compose.yaml", "models.config"]
    assert "--xla_cpu_compilation_enabled=true" in caplog.text
    assert _served(tmp_path) == ([1], {"stable": 1})


def test_names():
    for name in ("pets", "a", "pets-1.0_b", "2"):
        assert check_name(name) == name
    for name in ("", "my pets", "-a", ".a", "_a", "a/b", "pêts", "a:b", "a\n", None, 3):
        with pytest.raises(ValueError, match="name must be made of letters"):
            check_name(name)
    for folder, name in (
        ("pets", "pets"),
        ("my pets!", "my_pets"),
        ("..pêts", "p_ts"),
        ("ü", "model"),
        ("a.b-c", "a.b-c"),
    ):
        assert check_name(default_name(pathlib.Path("/models") / folder)) == name


MANUAL = (pathlib.Path(__file__).parents[2] / "docs" / "serving.md").read_text()


def _blocks_with(text):
    return [block for block in re.findall(r"^```\n(.*?)^```$", MANUAL, re.DOTALL | re.MULTILINE) if text in block]


def test_promotion_in_the_manual(tmp_path):
    _export(tmp_path, 1)
    _export(tmp_path, 2)
    before, after = _blocks_with("version_labels")
    _edit(tmp_path, (before, after))
    assert _served(tmp_path) == ([1, 2], {"stable": 2, "previous": 1})
