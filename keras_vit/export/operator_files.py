"""Writes configuration files of TensorFlow Serving next to the versions of a model."""

import logging
import re

from keras_vit.atomic_files import replace_file_atomically

logger = logging.getLogger(__name__)

_MODELS = """\
# The versions that are served, and their labels. The server reads this file every minute. It can move a label only to a
# version that it already serves. First add the version, wait a minute, then change the number of the label.
# To promote the canary: exchange the numbers of "stable" and "canary", and rename "canary" to "previous". To roll back:
# undo this. The next export keeps the versions that have a label.
model_config_list {{
  config {{
    name: "{name}"
    base_path: "/models/{name}"
    model_platform: "tensorflow"
    model_version_policy {{
      specific {{
{versions}
      }}
    }}
{labels}
  }}
}}
"""
_BATCHING = """\
# Maximum number of images in one request. A large request is split into batches.
max_batch_size {{ value: {max_request} }}
enable_large_batch_splitting {{ value: true }}
# Maximum number of images in a batch. Requests that wait at the same time are combined into a batch.
max_execution_batch_size {{ value: {max_batch_size} }}
# How long the first request waits for others. Larger values increase throughput. 0 gives the lowest latency.
batch_timeout_micros {{ value: 2000 }}
# Maximum number of waiting batches. If more arrive, the server answers "unavailable", and the client must try again.
max_enqueued_batches {{ value: {enqueued_batches} }}
"""
_ENQUEUED_BATCHES = 1000
_MONITORING = """\
# For Prometheus: port 8501, /monitoring/prometheus/metrics
prometheus_config { enable: true, path: "/monitoring/prometheus/metrics" }
"""
_COMPOSE = """\
# docker compose up: gRPC on port 8500, REST on port 8501.
services:
  serving:
    image: tensorflow/serving:latest # With a GPU: latest-gpu, and the lines at the end.
    command:
      - --model_config_file=/models/{name}/models.config
      - --model_config_file_poll_wait_seconds=60
      - --allow_version_labels_for_unavailable_models=true
      - --enable_batching=true
      - --batching_parameters_file=/models/{name}/batching.config
      - --monitoring_config_file=/models/{name}/monitoring.config{xla}
    environment: # For CPUs.
      TF_ENABLE_ONEDNN_OPTS: "1" # TensorFlow does this itself only on processors with VNNI.
      TF_ONEDNN_ASSUME_FROZEN_WEIGHTS: "1" # The weights are reordered for matrix products once, not for each request.
    ports: ["8500:8500", "8501:8501"]
    volumes: [".:/models/{name}:ro"]
    healthcheck: # The image has bash, and neither curl nor wget.
      test:
        - CMD
        - bash
        - -c
        - >-
          exec 3<>/dev/tcp/localhost/8501 && printf 'GET /v1/models/{name} HTTP/1.0\\r\\n\\r\\n' >&3
          && grep -q '"AVAILABLE"' <&3
      start_period: 120s
    restart: unless-stopped
    # deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, count: 1, capabilities: [gpu]}}]}}}}}}
"""
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
    contents = {
        "batching.config": _BATCHING.format(
            max_request=min(10_000, _ENQUEUED_BATCHES // 2 * max(batch_sizes)),
            max_batch_size=max(batch_sizes),
            enqueued_batches=_ENQUEUED_BATCHES,
        ),
        "monitoring.config": _MONITORING,
        "compose.yaml": _COMPOSE.format(name=name, xla=_XLA if jit_compile else ""),
    }
    for file, content in contents.items():
        write_unless_edited(path / file, content)
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
    return _MODELS.format(
        name=name,
        versions="\n".join(f"        versions: {version}" for version in versions),
        labels="\n".join(f'    version_labels {{ key: "{key}" value: {value} }}' for key, value in labels.items()),
    )


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
