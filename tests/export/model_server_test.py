"""The configuration files of OpenVINO Model Server, and the client in docs/serving/eight_bits.md."""

import json
import logging
import pathlib
import re

import numpy as np
import pytest
import yaml

from keras_vit.export.server_files import check_no_openvino_versions, check_version_folder, write_server_files
from tests.export.stand_in import serve
from tests.pictures import encoded, picture

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "serving" / "eight_bits.md").read_text()


def _export(folder, version="1", name="pets.xml"):
    """Writes the files of an export, except the model. Returns {name: text of the configuration}."""
    (folder / version).mkdir(exist_ok=True)
    write_server_files(folder / version / name)
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def test_export_writes_the_files(openvino_file):
    model, written = openvino_file
    folder = written.path.parents[1]
    [entry] = json.loads((folder / "config.json").read_text())["model_config_list"]
    assert entry["config"]["name"] == "tiny.v2"
    import openvino

    # OpenVINO refuses options that it does not know.
    compiled = openvino.Core().compile_model(written.path, "CPU", entry["config"]["plugin_config"])
    assert compiled.get_property("INFERENCE_PRECISION_HINT") == openvino.Type.f32
    images = np.random.default_rng(5).uniform(0, 255, (2, 19, 22, 1)).astype("float32")
    assert compiled({"images": images})["probabilities"].shape == (2, model.output_shape[-1])


def test_config_and_compose_name_the_same_paths_and_ports(tmp_path):
    files = _export(tmp_path, name="my pets.xml")
    assert files.keys() == {"config.json", "compose.yaml"}
    config = json.loads(files["config.json"])
    # The server refuses other fields (src/schema.cpp of the server, version 2026.2.1).
    assert config.keys() <= {"model_config_list", "monitoring"}
    assert config["monitoring"] == {"metrics": {"enable": True}}
    [entry] = config["model_config_list"]
    assert entry.keys() == {"config"}
    assert entry["config"].keys() <= {"name", "base_path", "plugin_config", "model_version_policy", "nireq"}
    assert (entry["config"]["name"], entry["config"]["base_path"]) == ("my_pets", "/models/my_pets")
    service = yaml.safe_load(files["compose.yaml"])["services"]["serving"]
    options = dict(zip(service["command"][::2], service["command"][1::2], strict=True))
    assert options == {"--config_path": "/models/my_pets/config.json", "--port": "8500", "--rest_port": "8501"}
    assert service["ports"] == ["8500:8500", "8501:8501"]
    assert service["volumes"] == [".:/models/my_pets:ro"]
    assert service["healthcheck"]["test"][-1] == "http://localhost:8501/v2/models/my_pets/ready"
    assert re.fullmatch(r"openvino/model_server:2026\.2\.1", service["image"])


@pytest.mark.parametrize("file", ["config.json", "compose.yaml"])
def test_edited_files_are_not_changed(tmp_path, caplog, file):
    original = _export(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert _export(tmp_path, "2") == original
        assert not caplog.records
        edited = original[file].replace("8501", "9501").replace("LATENCY", "THROUGHPUT")
        assert edited != original[file]
        (tmp_path / file).write_text(edited)
        assert _export(tmp_path, "3") == original | {file: edited}
    [message] = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"{tmp_path / file} was edited or comes from an earlier export. It is not changed.")


@pytest.mark.parametrize("place", ["pets/pets.xml", "01/pets.xml", "0/pets.xml", "v1/pets.xml", "1/pets.onnx"])
def test_other_folders_and_files_have_no_server(tmp_path, place):
    path = tmp_path / place
    path.parent.mkdir()
    write_server_files(path)
    (path.parent / "other.onnx").touch()
    check_version_folder(path)
    assert [child.name for child in tmp_path.iterdir()] == [path.parent.name]


def test_a_version_has_one_file(tmp_path):
    path = tmp_path / "2" / "pets.xml"
    check_version_folder(path)
    path.parent.mkdir()
    for name in ("pets.xml", "pets.bin", "README.md"):
        (path.parent / name).touch()
    check_version_folder(path)
    for name in ("dogs.bin", "saved_model.pb", "pets.onnx"):
        (path.parent / name).touch()
        with pytest.raises(ValueError, match=rf"contains {name}\. The server loads only one model of a version"):
            check_version_folder(path)
        (path.parent / name).unlink()


def test_the_folder_of_a_version_is_only_for_its_server(tmp_path):
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "pets.xml").touch()
    with pytest.raises(ValueError, match=r"contains pets\.xml\. The server loads only one model"):
        check_version_folder(tmp_path / "2" / "pets.onnx")
    with pytest.raises(ValueError, match=r"contains the versions of an OpenVINO file \(2/pets\.xml\)"):
        check_no_openvino_versions(tmp_path)
    check_no_openvino_versions(tmp_path / "2")
    (tmp_path / "models.config").touch()
    check_version_folder(tmp_path / "3" / "pets.onnx")
    with pytest.raises(ValueError, match=r"versions of a SavedModel for TensorFlow Serving"):
        check_version_folder(tmp_path / "3" / "pets.xml")


@pytest.mark.slow
def test_client(loaded, pets, tmp_path, monkeypatch, capsys):
    grpc = pytest.importorskip("grpc")
    [code] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    photo = picture(48, 32)
    (tmp_path / "photo.png").write_bytes(encoded(photo, "PNG"))
    insecure_channel = grpc.insecure_channel
    with serve({"serving_default": loaded.signatures["predict_pixels_float"]}) as (_, port):
        monkeypatch.setattr(
            grpc, "insecure_channel", lambda target: insecure_channel(target.replace("8500", str(port)))
        )
        for old, new in (("photo.jpg", "photo.png"), ("(224, 224)", "(24, 16)")):
            assert code.count(old) == 1
            code = code.replace(old, new)
        exec(compile(code, "eight_bits.md", "exec"), {})
    import PIL.Image

    resized = PIL.Image.open("photo.png").resize((24, 16), PIL.Image.Resampling.BICUBIC)
    expected = pets[0].predict(np.asarray(resized, "float32")[None], verbose=0)[0]
    assert capsys.readouterr().out == f"{expected.argmax()}: {expected.max():.1%}\n"
