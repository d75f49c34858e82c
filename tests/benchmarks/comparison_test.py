"""The rounds of the comparison, the tables of their results, and the choice of contenders."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import keras_vit
from benchmarks import comparison, contenders, runtimes
from benchmarks.comparison import (
    Entry,
    compare,
    plot,
    plot_relative,
    relative_rates,
    rows_of,
    table,
    write_document,
)
from benchmarks.contenders import CONTENDERS, REFERENCE_OF_INT8, files, keras_models
from benchmarks.contenders.matrix_product import flops_of_product, with_tensorflow
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


def test_a_training_step_counts_as_three_passes(entries):
    forward, _ = rows_of(JOB, entries, 8, 4, MACS)
    train, _ = rows_of(Job("S/16", 224, "train"), entries, 8, 4, MACS)
    assert train["share_of_products"] == 3 * forward["share_of_products"]


def test_contenders_are_measured_in_processes_of_their_own(capsys, monkeypatch):
    monkeypatch.setattr(comparison, "open_matrix_product", open_quick)
    steps = {"ours": open_quick, "timm": open_slow, "transformers": open_broken}
    found = compare(JOB, steps, batch_size=4, steps=2, rounds=3)
    assert set(found) == {"ours", "timm", None}
    assert [len(entry.seconds) for entry in found.values()] == [3, 3, 3]
    assert min(found["ours"].seconds) >= 0.008
    assert min(found["timm"].seconds) >= 0.016
    assert (found["ours"].device, found["ours"].memory > 10**6) == ("a stub", True)
    assert 0 < found["ours"].ready < 10
    assert "transformers failed: " in capsys.readouterr().err


def test_who_dies_in_a_round_is_left_out(capsys, monkeypatch):
    monkeypatch.setattr(comparison, "open_matrix_product", open_quick)
    found = compare(JOB, {"ours": open_quick, "timm": open_dying}, batch_size=4, steps=2, rounds=3)
    assert set(found) == {"ours", None}
    assert len(found["ours"].seconds) == 3
    assert "timm failed: " in capsys.readouterr().err


def test_without_a_product_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(comparison, "open_matrix_product", open_broken)
    with pytest.raises(RuntimeError, match="no contender can be measured"):
        compare(JOB, {"ours": open_quick}, batch_size=4, steps=2, rounds=3)


def test_another_device_has_no_share_and_no_ratio(entries):
    entries["timm"].device = "another"
    ours, other = rows_of(JOB, entries, 8, 4, MACS)
    assert (ours["times_ours"], other["times_ours"], other["share_of_products"]) == (1.0, None, None)
    assert "| timm | 8.0 | 6.0 to 12.0 |  |  | 3.2 | 0.5 | 2.0 |" in table([other])  # A step takes 1 s of the 1.5 s.


@pytest.mark.parametrize(
    ("name", "job", "expected"),
    [
        ("ours", Job("VTResNet50", 224, "train"), None),
        ("saved-model", Job("S/16", 224, "train"), "does not train"),
        ("saved-model", Job("S/16", 224, precision="int8"), None),
        ("ours", Job("S/16", 224, precision="int8"), "not in int8"),
        ("litert@float32", Job("S/16", 224, precision="int8"), None),
    ],
)
def test_who_takes_part(name, job, expected):
    assert CONTENDERS[name].missing(job) == expected


@pytest.mark.parametrize(
    ("name", "has", "has_not"),
    [
        ("keras-hub", "L/16", "R50+B/16"),
        ("zeromodels-jax", "DINOv3-S/16", "H/14"),
        ("timm", "R50+B/16", "H/14"),
        ("transformers", "B/16", "VTResNet50"),
    ],
)
def test_who_has_a_model(name, has, has_not):
    assert CONTENDERS[name].has(has)
    assert not CONTENDERS[name].has(has_not)


def test_what_is_not_installed_is_told(monkeypatch):
    monkeypatch.setattr(contenders.importlib.util, "find_spec", lambda name: None)
    assert CONTENDERS["timm"].missing(JOB) == "torch and timm not installed"


def test_list_says_what_would_run(capsys):
    assert not comparison.main(["--list", "--models", "S/16", "--work", "train", "--contenders", "ours", "onnx"])
    assert capsys.readouterr().out == (
        "train of S/16 at 224 pixels in float32: ours\n  without onnx: does not train\n"
    )  # fmt: skip


def test_everything_is_of_all_models_works_and_precisions(capsys):
    assert not comparison.main(["--list", "--everything", "--contenders", "ours", "saved-model"])
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert len(set(lines)) == len(lines) == 7 * 5
    assert "train of B/16 at 384 pixels in bfloat16: ours" in lines
    assert "forward of VTResNet50 at 224 pixels in int8: saved-model" in lines


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


def test_each_work_and_device_has_a_panel(entries):
    rows = rows_of(JOB, entries, 8, 4, MACS) + rows_of(Job("S/16", 224, "train"), entries, 8, 4, MACS)
    rate = {"images_per_second": 7.0, "low": 7.0, "high": 7.0}
    others = [row | rate | {"device": "another"} for row in rows]
    forward, train, there, _ = plot(rows + others).axes
    assert [bar.get_width() for bar in forward.patches] == [8.0, 16.0]
    assert [bar.get_width() for bar in there.patches] == [7.0, 7.0]
    assert "train" in train.get_title()
    assert there.get_title().endswith("another")
    assert table(rows).count("\n| ") == 4


def test_relative_speeds_have_a_mark_for_each_device(entries):
    rows = rows_of(JOB, entries, 8, 4, MACS)
    others = [row | {"device": "another"} for row in rows]
    left_out = [row | change for row in rows for change in ({"model": "B/16"}, {"precision": "bfloat16"})]
    without_ratio = [rows[0] | {"device": "a third", "times_ours": None}]
    training = rows_of(Job("S/16", 224, "train"), entries, 8, 4, MACS)[:1]
    rates = relative_rates([*rows, *others, *left_out, *without_ratio, *training])
    ratios = {CONTENDERS[row["contender"]].title: row["times_ours"] for row in rows}
    assert rates["forward"] == {title: {"a stub": ratio, "another": ratio} for title, ratio in ratios.items()}
    forward, train = plot_relative(rates).axes
    assert [line.get_label() for line in forward.lines[1:]] == ["a stub", "another"]
    assert list(forward.lines[1].get_xdata()) == sorted(ratios.values())
    assert [len(line.get_xdata()) for line in train.lines[1:]] == [1, 0]


def test_ours_alone_is_drawn_only_where_nothing_is_compared(entries):
    both = rows_of(JOB, entries, 8, 4, MACS)
    alone = rows_of(Job("S/16", 224, "train"), {name: entries[name] for name in ("ours", None)}, 8, 4, MACS)
    assert [axis.get_title() for axis in plot(both + alone).axes] == [axis.get_title() for axis in plot(both).axes]
    assert len(plot(alone).axes) == 1


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


def _ask_saved_model(folder):
    keras_vit.VARIANTS["tiny"] = TINY
    job = Job("tiny", 12)
    files.write_saved_model(job, folder)
    make_steps, _ = files.open_saved_model(job, folder)
    make_steps(3, 2)
    outputs = make_steps.model.signatures["predict_pixels_float"](images=np.zeros((3, 12, 12, 3), "float32"))
    assert outputs["probabilities"].shape == (3, 1000)


def test_the_saved_model_answers(tmp_path):
    # If weights are treated as frozen, no other model may be in the process.
    elsewhere(_ask_saved_model, tmp_path / "tiny")


def _ask_runtimes(folder):
    keras_vit.VARIANTS["tiny"] = TINY
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


def test_files_of_other_runtimes_answer(tmp_path):
    elsewhere(_ask_runtimes, tmp_path)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_product_is_made_in_each_step(precision, monkeypatch):
    import tensorflow as tf

    made, matmul = [], tf.matmul
    monkeypatch.setattr(tf, "matmul", lambda *matrices: made.append(matmul(*matrices)))
    monkeypatch.setattr(shutil, "which", lambda program: None)
    make_steps, device = with_tensorflow(Job("S/16", 224, precision=precision))
    make_steps(8, 3)
    assert [product.dtype.name for product in made] == [precision] * 3
    assert flops_of_product() == 2 * 1576 * 768 * 3072
    assert made[0].shape == (1576, 3072)
    assert device


def test_the_product_keeps_a_gpu_busy(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    assert flops_of_product() == 2 * 8192**3


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


def test_runtimes_read_their_files():
    names = ["onnx", "onnx-timm", "openvino", "openvino-timm", "litert", REFERENCE_OF_INT8]
    reading = {name: (CONTENDERS[name].files["float32"], CONTENDERS[name].write.__name__) for name in names}
    assert reading == {
        "onnx": ("ours.onnx", "write_ours"),
        "onnx-timm": ("timm.onnx", "write_timm"),
        "openvino": ("ours.xml", "write_ours"),
        "openvino-timm": ("timm.onnx", "write_timm"),
        "litert": ("ours.tflite", "write_ours"),
        "openvino@float32": ("ours.xml", "write_ours"),
    }


def test_whose_file_cannot_be_written_is_left_out(tmp_path, monkeypatch, capsys):
    unable = dataclasses.replace(CONTENDERS["onnx"], write=open_broken)
    monkeypatch.setitem(CONTENDERS, "onnx", unable)
    assert list(comparison.prepare(JOB, ["ours", "onnx"], tmp_path)) == ["ours"]
    assert "onnx failed: open_broken ended with 1" in capsys.readouterr().err


def test_random_weights_are_not_zero():
    model = keras_models.randomized(keras_vit.ViT("Ti/16", input_shape=(32, 32, 3), classes=2))
    assert all(np.any(np.asarray(weight)) for weight in model.weights)
