"""The clients in docs/serving.md run unchanged."""

import json
import pathlib
import re
import shutil
import subprocess
import urllib.request

import grpc
import numpy as np
import pytest
import yaml

import keras_vit
from keras_vit.data.decoding import image_decoder
from keras_vit.export.server_files import write_operator_files
from tests.export.exports import LABELS, TOP_K
from tests.export.stand_in import serve
from tests.pictures import encoded, picture
from tests.test_case import to_numpy

ROOT = pathlib.Path(__file__).parents[2]
MANUAL = (ROOT / "docs" / "serving.md").read_text()


def _blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


FIRST_CLIENTS = [code for code in _blocks(MANUAL, "python") if "SystemExit" in code]
OTHER_CLIENTS = [code for code in _blocks(MANUAL, "python") if "SystemExit" not in code]


@pytest.fixture
def model(pets):
    return pets[0]


@pytest.fixture(scope="module")
def ports(loaded):
    """The server's ports: (REST, gRPC)."""
    with serve(loaded.signatures) as ports:
        yield ports


@pytest.fixture
def client(ports, tmp_path, monkeypatch):
    """A folder with a photograph. The clients' addresses are replaced by those of the test server."""
    rest, rpc = ports
    urlopen, insecure_channel = urllib.request.urlopen, grpc.insecure_channel

    def open_there(url, *arguments):
        assert url.startswith("http://localhost:8501/")
        return urlopen(url.replace("8501", str(rest)), *arguments)

    def channel_there(target, *arguments, **options):
        assert target == "localhost:8500"
        return insecure_channel(f"localhost:{rpc}", *arguments, **options)

    monkeypatch.setattr(urllib.request, "urlopen", open_there)
    monkeypatch.setattr(grpc, "insecure_channel", channel_there)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".curlrc").write_text(f'connect-to = "localhost:8501:localhost:{rest}"\nsilent\nfail\n')
    monkeypatch.setenv("CURL_HOME", str(tmp_path))
    (tmp_path / "photo.jpg").write_bytes(encoded(picture(130, 90), "JPEG"))
    return tmp_path


def _expected(model, pixels):
    """[(label, score)] of an image, sorted by descending score."""
    scores = model.predict(pixels[None], verbose=0)[0]
    assert np.ptp(scores) > 0.1
    return [(LABELS[index], scores[index]) for index in np.argsort(-scores)[:TOP_K]]


def _photo(client, model):
    return image_decoder(model)((client / "photo.jpg").read_bytes()).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("code", FIRST_CLIENTS, ids=["REST", "gRPC"])
def test_clients_that_send_a_photograph(client, model, capsys, code):
    exec(compile(code, "serving.md", "exec"), {})
    expected = [f"{label}: {score:.1%}" for label, score in _expected(model, _photo(client, model))]
    assert capsys.readouterr().out.splitlines() == expected
    (client / "photo.jpg").write_bytes(b"no photograph")
    with pytest.raises(SystemExit, match="cannot be read as an image"):
        exec(compile(code, "serving.md", "exec"), {})


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
def test_curl(client, model):
    answers = []
    for code in _blocks(MANUAL, "bash"):
        result = subprocess.run(["bash", "-eu", "-c", code], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        answers.append(json.loads(result.stdout))
    [default], embedded = answers[0].pop("predictions"), answers[1].pop("outputs")
    assert answers == [{}, {}]
    labels, scores = zip(*_expected(model, _photo(client, model)), strict=True)
    assert (tuple(default["labels"]), default["valid"]) == (labels, True)
    np.testing.assert_allclose(default["scores"], scores, atol=1e-5)
    np.testing.assert_allclose(np.take(default["probabilities"], default["classes"]), scores, atol=1e-5)
    representation = keras_vit.features(model, _photo(client, model)[None], ["pooling"])["pooling"]
    np.testing.assert_allclose(embedded["embedding"], to_numpy(representation), atol=1e-5)
    assert embedded["valid"] == [True]


@pytest.mark.slow
def test_python_in_the_manual(client, model, capsys):
    printed = []
    for code in OTHER_CLIENTS:
        exec(compile(code.replace("224, 224", "16, 24"), "serving.md", "exec"), {})
        printed.append(capsys.readouterr().out.strip())
    gray = _expected(model, np.full((16, 24, 3), 127.5, "float32"))
    assert printed == [str([label for label, _ in gray]), "(8, 8, 12, 12)"]


def test_kubernetes_manifest(tmp_path):
    write_operator_files(tmp_path, "pets", 1, [1, 8], jit_compile=False)
    flags = yaml.safe_load((tmp_path / "compose.yaml").read_text())["services"]["serving"]["command"]
    [manifest] = map(yaml.safe_load, _blocks(MANUAL, "yaml"))
    pod = manifest["spec"]["template"]
    assert manifest["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    [container] = pod["spec"]["containers"]
    assert container["args"][: len(flags)] == flags
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    assert {probe["port"] for probe in probes.values()} == {8501}
    assert all(f"`{probe['path']}`" in MANUAL for probe in probes.values())
    monitoring = pod["metadata"]["annotations"]["prometheus.io/path"]
    assert f'path: "{monitoring}"' in (tmp_path / "monitoring.config").read_text()
