"""The rounds of the comparison, the tables of their results, and the choice of contenders."""

import dataclasses
import json

import numpy as np
import pytest

import keras_vit
from benchmarks import comparison, runtimes
from benchmarks.comparison import Entry, compare, rows_of, write_document
from benchmarks.contenders import CONTENDERS, REFERENCE_OF_INT8, files, keras_models
from benchmarks.contenders.matrix_product import flops_of_product
from benchmarks.records import PAGES, newest, read
from benchmarks.workers import Job, elsewhere
from tests.benchmarks.stub_steps import open_broken, open_dying, open_file, open_quick, open_slow, write_half, write_job

pytestmark = pytest.mark.slow

JOB = Job("S/16", 224)
MACS = 10**9
TINY = keras_vit.ViTConfig(patch_size=4, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20)


@pytest.fixture
def entries():
    """Three rounds of 4 steps with 8 images. Ours: 16, 32 and 8 images/s; timm: half of that; products: 1 GHz."""

    def entry(seconds):
        return Entry(None, 1.5, seconds, 3.25, 2 * 10**9, "a stub")

    products = [comparison._PRODUCTS * flops_of_product() / 1e9] * 3
    return {"ours": entry([2.0, 1.0, 4.0]), "timm": entry([4.0, 2.0, 8.0]), None: entry(products)}


def test_rates_ratios_and_shares_are_medians_over_the_rounds(entries):
    ours, other = rows_of(JOB, entries, 8, 4, MACS)
    assert (ours["contender"], ours["images_per_second"], ours["times_ours"]) == ("ours", 16.0, 1.0)
    assert (ours["low"], ours["high"]) == (12.0, 24.0)
    assert (other["contender"], other["images_per_second"], other["times_ours"]) == ("timm", 8.0, 0.5)
    assert ours["share_of_products"] == 2 * MACS * 16 / 1e9
    assert (ours["ready_seconds"], ours["first_step_seconds"]) == (3.25, 1.5)
    assert (ours["peak_memory"], ours["rounds"]) == (2 * 10**9, 3)
    train, _ = rows_of(Job("S/16", 224, "train"), entries, 8, 4, MACS)
    assert train["share_of_products"] == 3 * ours["share_of_products"]


def test_contenders_are_measured_in_processes_of_their_own(capsys, monkeypatch):
    monkeypatch.setattr(comparison, "open_matrix_product", open_quick)
    steps = {"ours": open_quick, "timm": open_slow, "transformers": open_broken, "onnx": open_dying}
    found = compare(JOB, steps, batch_size=4, steps=2, rounds=3)
    assert set(found) == {"ours", "timm", None}
    assert [len(entry.seconds) for entry in found.values()] == [3, 3, 3]
    assert min(found["ours"].seconds) >= 0.008
    assert min(found["timm"].seconds) >= 0.016
    assert (found["ours"].device, found["ours"].memory > 10**6) == ("a stub", True)
    assert 0 < found["ours"].ready < 10
    errors = capsys.readouterr().err
    assert "transformers failed: " in errors
    assert "onnx failed: " in errors


def test_the_newest_results_are_written_into_the_document(entries, tmp_path, monkeypatch):
    rows = [row | {"versions": {"keras": "3.15"}, "time": "2"} for row in rows_of(JOB, entries, 8, 4, MACS)]
    results = tmp_path / "comparison.jsonl"
    older = [row | {"images_per_second": 99.0, "time": "1"} for row in rows]
    older.append(older[0] | {"contender": "onnx"})  # It was not timed together with the newer rows.
    results.write_text("".join(f"{json.dumps(row)}\n" for row in older + rows))
    document, *figures = (tmp_path / name for name in ("comparison.md", "performance.png", "relative_speed.png"))
    monkeypatch.setitem(PAGES, "bench", document)
    document.write_text("before\n<!-- make bench: begin -->\nold<!-- make bench: end -->\nafter\n")
    kept = newest(read(results), comparison._KEYS)
    write_document(kept, *figures)
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "99" not in text
    assert "old" not in text
    ours, other = [line for line in text.splitlines() if line.startswith("| forward")]
    assert "| keras_vit, TensorFlow | 16.0 | 12.0 to 24.0 | 1.00 |" in ours
    assert "| timm | 8.0 |" in other
    assert "### a stub\n\nkeras 3.15:" in text
    write_document(kept, *figures)
    assert document.read_text() == text
    assert all(figure.stat().st_size > 4_000 for figure in figures)


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
@pytest.mark.parametrize("work", ["forward", "train"])
def test_ours_runs_as_users_run_it(work, backend, monkeypatch, keras_calls):
    monkeypatch.setitem(keras_vit.VARIANTS, "tiny", TINY)
    monkeypatch.setenv("KERAS_BACKEND", "of this process")  # It is restored after the test.
    make_steps, device = keras_models.open_keras(Job("tiny", 12, work), keras_models.build_ours, backend)
    make_steps(2, 3)
    make_steps(2, 0)
    [(method, data, options)] = keras_calls
    assert method == {"forward": "predict", "train": "fit"}[work]
    if backend == "tensorflow":
        images, *_ = data.element_spec
        assert (data.cardinality(), images.shape.as_list()) == (3, [None, 12, 12, 3])
    else:
        assert (data.shape, options["batch_size"]) == ((6, 12, 12, 3), 2)
    assert device


def _ask_files(folder):
    keras_vit.VARIANTS["tiny"] = TINY
    # If the weights of a SavedModel are treated as frozen, no other model may be in the process, so it is the first.
    files.write_saved_model(Job("tiny", 12), folder / "tiny")
    make_steps, _ = files.open_saved_model(Job("tiny", 12), folder / "tiny")
    make_steps(3, 2)
    outputs = make_steps.model.signatures["predict_pixels_float"](images=np.zeros((3, 12, 12, 3), "float32"))
    assert outputs["probabilities"].shape == (3, 1000)
    for name, precision in (("openvino", "int8"), ("litert", "float32")):
        job, path = Job("tiny", 12, precision=precision), folder / CONTENDERS[name].files[precision]
        CONTENDERS[name].write(job, path)
        make_steps, device = CONTENDERS[name].open_steps(job, path)
        make_steps(1, 1)
        make_steps(3, 2)
        assert device
    answer = runtimes.litert_model(str(path), 1)
    for batch_size in (2, 1):
        assert answer(np.zeros((batch_size, 12, 12, 3), "float32")).shape == (batch_size, 1000)


def test_files_answer(tmp_path):
    elsewhere(_ask_files, tmp_path)


def test_what_a_contender_reads_is_written_once(tmp_path):
    files = {"float32": "a file", "int8": "a file in int8", "bfloat16": "a file"}
    contender = dataclasses.replace(CONTENDERS["saved-model"], open_steps=open_file, files=files, write=write_job)
    make_steps, device = contender.prepare(JOB, tmp_path)(JOB)
    assert make_steps(8, 1) == f"{JOB} opened in float32"
    assert device == "a stub"
    unable = dataclasses.replace(contender, write=write_half)
    assert unable.prepare(JOB, tmp_path)(JOB)[0](8, 1) == f"{JOB} opened in float32"  # The file exists already.
    for _ in range(2):  # A partial file is not used.
        with pytest.raises(RuntimeError, match="write_half ended with 1"):
            dataclasses.replace(unable, files={"float32": "another"}).prepare(JOB, tmp_path)


def test_files_in_int8_are_compared_with_those_in_other_precisions(tmp_path, entries):
    job = Job("S/16", 224, precision="int8")
    files = {"float32": "a file", "int8": "another", "int8+bfloat16": "another"}
    int8 = dataclasses.replace(CONTENDERS["openvino"], open_steps=open_file, files=files, write=write_job)
    written = []
    for contender in (int8, int8.beside_int8("float32"), int8.beside_int8("int8+bfloat16")):
        assert contender.missing(job) is None
        make_steps, _ = contender.prepare(job, tmp_path)(job)
        written.append(make_steps(8, 1))
    float32 = dataclasses.replace(job, precision="float32")
    assert written == [f"{job} opened in int8", f"{float32} opened in float32", f"{job} opened in int8+bfloat16"]
    assert int8.beside_int8("float32").missing(float32) == "only in comparisons in int8"
    references = {REFERENCE_OF_INT8: entries["timm"], "openvino": entries["ours"], None: entries[None]}
    assert [row["times_ours"] for row in rows_of(job, references, 8, 4, MACS)] == [1.0, 2.0]
