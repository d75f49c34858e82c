# make train: set-up included, trains a ViT on the embedded digits, exports a SavedModel, predicts with it.
# make test:  set-up included, lints and runs the default tier of the tests; make test-full runs all.

.PHONY: train test lint test-full test-changed test-costs mutation test-peers test-peers-full support-matrix test-lowest accuracy vt-accuracy robustness survival self-supervision models weights docs bench bench-input bench-latency bench-speed bench-size bench-first-step bench-merging bench-scenes bench-tokens bench-agreement bench-int8-settings bench-tensorflow-int8 bench-cifar10 bench-all clean

# What to train, and changes of it: make train RECIPE=folder ARGS="data.directory=photographs fit.epochs=30"
RECIPE ?= digits
ARGS ?=

# The first Python from 3.11 to 3.13 that can make virtual environments.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo $$python && break; done)

# Modules are compiled once, not again in each process.
unexport PYTHONDONTWRITEBYTECODE

# As a folder of sys.path: otherwise a clone named keras_vit hides the package from programs that run beside it.
EDITABLE = --config-settings editable_mode=compat --editable

train: .venv/training.installed
	.venv/bin/python -m training train $(RECIPE) $(ARGS)

# What runs TensorFlow's operations whatever Keras runs on.
OF_TENSORFLOW = compat training serving benchmarks data/decoding_test.py readme_test.py

# Two processes, file by file. When a process crashes, the tests end: with another process in its place, pytest-xdist 3.8 hangs.
# NumPy's linear algebra uses one thread, because waiting threads would take the other process's time.
TWO = -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0
PYTEST = OMP_NUM_THREADS=1 .venv/bin/python -m pytest $(TWO)

# The default tier: on TensorFlow what is not slow, on JAX what depends on the backend. In a random order; a failure names
# the seed: make test ARGS="-p randomly --randomly-seed=7". On JAX, a second process would import longer than it would test.
JAX = KERAS_BACKEND=jax .venv/bin/python -m pytest -m "each_backend and not slow"
test: lint
	KERAS_BACKEND=tensorflow $(PYTEST) $(ARGS)
	$(JAX) $(ARGS)

# Everything that one machine can run: before a release.
test-full: lint
	KERAS_BACKEND=tensorflow $(PYTEST) -m "" $(ARGS)
	KERAS_BACKEND=jax $(PYTEST) -m "" $(patsubst %,--ignore=tests/%,$(OF_TENSORFLOW)) $(ARGS)
	KERAS_BACKEND=jax $(PYTEST) -m each_backend tests/training $(ARGS)

# The files of tests that run what has changed since the last call. The first call runs the default tier, to learn which.
test-changed: .venv/test.installed
	.venv/bin/python -m tests.changed $(ARGS)

# What each test costs, by part, file and test, into costs/: docs/testing.md.
test-costs: .venv/test.installed
	rm -rf costs
	TEST_COSTS=costs KERAS_BACKEND=tensorflow $(PYTEST) -p tests.costs $(ARGS)
	TEST_COSTS=costs $(JAX) -p tests.costs $(ARGS)
	.venv/bin/python -m tests.costs costs

# Whether the tests notice mistakes: make mutation ARGS="draw --count 300 --seed 0", then trace, run and report (docs/testing.md).
mutation: .venv/test.installed
	.venv/bin/python -m benchmarks.mutation $(ARGS)

# Comparisons with timm, transformers and KerasHub: one small model of each family on TensorFlow and JAX, and on torch what
# depends on the backend. With one thread a process torch adds up in the same order everywhere.
PEERS = OMP_NUM_THREADS=1 .venv-peers/bin/python -m pytest $(TWO) -p tests.peers.first_imports
test-peers: .venv-peers/installed
	KERAS_BACKEND=jax $(PEERS) tests/peers
	KERAS_BACKEND=tensorflow $(PEERS) tests/peers
	KERAS_BACKEND=torch $(PEERS) -m "(each_backend or on_torch) and not slow" tests/layers tests/models

# All comparisons, on all three backends, and the models and weights on torch: before a release.
test-peers-full: .venv-peers/installed support-matrix
	KERAS_BACKEND=jax $(PEERS) -m "" tests/peers
	KERAS_BACKEND=tensorflow $(PEERS) -m "" tests/peers
	KERAS_BACKEND=torch $(PEERS) -m "" tests/peers tests/layers tests/models tests/trunks tests/weights \
		tests/pretrained_test.py tests/resampling_test.py

.venv-peers/installed: setup.cfg pyproject.toml | .venv/bin/python
	@echo "Installing into .venv-peers what setup.cfg names for peers: some minutes, and about 10 GB."
	@.venv/bin/python -m venv --clear .venv-peers
	@.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check $(EDITABLE) '.[peers]'
	@touch $@

# Which models of timm and transformers are read, and which settings of images: docs/support.md. Fails if one is wrong.
MATRIX = KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 OMP_NUM_THREADS=1 .venv-peers/bin/python -m benchmarks.support_matrix
support-matrix: .venv-peers/installed
	$(MATRIX) --document
	$(MATRIX)_transformers --document
	$(MATRIX)_settings

# The default tier on TensorFlow with the lowest versions that setup.cfg allows: before a release.
test-lowest: .venv/test.installed
	.venv/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv/bin/uv venv --quiet --clear --python .venv/bin/python .venv-lowest
	.venv/bin/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct $(EDITABLE) '.[test]'
	KERAS_BACKEND=tensorflow .venv-lowest/bin/python -m pytest $(TWO)

# Builds the sdist and the wheel into dist/, checks both, and uses them in a new environment with TensorFlow.
.PHONY: package-check release-check
package-check: .venv/release.installed
	.venv/bin/python -m tests.release.package

# Everything that must hold before a release, apart from the tests: CONTRIBUTING.md.
release-check: .venv/release.installed
	.venv/bin/python -m tests.release.readiness
	$(MAKE) package-check

lint: .venv/test.installed
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# Mean test accuracy on the digits over three seeds, at least 97 %; make accuracy ARGS="--seeds 0" trains once.
accuracy: .venv/training.installed
	.venv/bin/python -m benchmarks.accuracy $(ARGS)

# The same of the four VT-ResNets.
vt-accuracy: .venv/training.installed
	KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 .venv/bin/python -m benchmarks.vt_digits

# Damaged weight files, settings, caches, images, recipes and records: make robustness ARGS="--weights 30000 --images 20000 --assignments 20000".
robustness: .venv/training.installed
	KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 .venv/bin/python -m benchmarks.robustness $(ARGS)

# Twenty kills of a run at random moments, which must change nothing of what it leaves.
survival: .venv/training.installed
	.venv/bin/python -m benchmarks.survival

# Pre-training without labels on the digits: masked patch prediction and MAE must beat a random start, in three seeds.
self-supervision: .venv/training.installed
	KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 .venv/bin/python -m benchmarks.self_supervision

# Images a second of the input pipeline, by stage, against layers of Keras and keras-cv: make bench-input ARGS=--document.
bench-input: .venv/training.installed
	.venv/bin/python -m benchmarks.input_pipeline $(ARGS)

# Cold load and latency of ViT-B/16 against KerasHub's SavedModel, ONNX Runtime and OpenVINO: make bench-latency
# ARGS="--document" writes it into docs/performance/latency.md. It wants a quiet machine.
bench-latency: .venv-peers/installed
	KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 .venv-peers/bin/python -m benchmarks.latency $(ARGS)

# Forward passes and training steps of ours and of other projects: make bench ARGS="--models B/16 --work train". The same
# on a GPU, where there is one: ARGS="--precision bfloat16 --contenders ours-jax timm-compiled". It wants a quiet machine.
bench: .venv-peers/installed
	TF_CPP_MIN_LOG_LEVEL=3 .venv-peers/bin/python -m benchmarks.comparison $(ARGS)

# Images a second and the largest batch, by model and size of the images: make bench-speed ARGS="--models B/16 --document".
bench-speed: .venv/training.installed
	TF_CPP_MIN_LOG_LEVEL=3 .venv/bin/python -m benchmarks.speed $(ARGS)

# Time and memory of an image against its size, the depth, the batch and the cores: make bench-size ARGS="--document".
bench-size: .venv/training.installed
	TF_CPP_MIN_LOG_LEVEL=3 .venv/bin/python -m benchmarks.cost_against_size $(ARGS)

# The parts of the first training step on TensorFlow: make bench-first-step ARGS="--models S/16 --document". It wants a quiet
# machine.
bench-first-step: .venv/training.installed
	KERAS_BACKEND=tensorflow .venv/bin/python -m benchmarks.first_step $(ARGS)

# How far a trained model's answers move with smaller weights, in other runtimes, and with merged tokens:
# make bench-agreement ARGS="--weights vit.npz --images photographs --document".
bench-agreement: .venv-peers/installed
	KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 .venv-peers/bin/python -m benchmarks.agreement $(ARGS)

# What token merging saves: make bench-merging ARGS=--document. It wants a quiet machine.
bench-merging: .venv/training.installed
	KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 .venv/bin/python -m benchmarks.token_merging $(ARGS)

# What the recipes of drawn scenes reach: make bench-scenes ARGS="semantic recipe --seed 0". A quarter of an hour each.
bench-scenes: .venv-peers/installed
	@.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check $(EDITABLE) '.[training]'
	KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 .venv-peers/bin/python -m benchmarks.scenes $(ARGS)

# The compute of transformers of visual tokens and of pixels: make bench-tokens ARGS=--document.
bench-tokens: .venv/training.installed
	KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 .venv/bin/python -m benchmarks.token_compute $(ARGS)

# Agreement, size and speed of int8 files, with our settings and those of the libraries: make bench-int8-settings
# ARGS="--weights vit.npz --images photographs --document". It wants a quiet machine.
bench-int8-settings: .venv-peers/installed
	KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 .venv-peers/bin/python -m benchmarks.int8_settings $(ARGS)

# Products and models in 8 bits on TensorFlow: make bench-tensorflow-int8 ARGS=--document. It wants a quiet machine.
bench-tensorflow-int8: .venv/training.installed
	KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 .venv/bin/python -m benchmarks.tensorflow_int8 $(ARGS)

# What a ViT learns from CIFAR-10 in an hour of two CPU cores, by option and against other projects: make bench-cifar10
# ARGS="hour --seeds 0 1 2". Its module lists all commands. It wants a quiet machine, and CIFAR-10 prepared for TFDS.
bench-cifar10: .venv/training.installed .venv-peers/installed
	KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=1 .venv/bin/python -m benchmarks.cifar10 $(ARGS)

# All of them but bench-agreement, bench-int8-settings and bench-cifar10, which need weights or images. Hours.
bench-all:
	$(MAKE) bench ARGS="--everything --document"
	$(MAKE) bench-latency ARGS=--document
	$(MAKE) bench-size ARGS=--document
	$(MAKE) bench-speed ARGS="--work forward train --memory-limit 8e9 --document"
	$(MAKE) bench-first-step ARGS=--document
	$(MAKE) bench-merging ARGS=--document
	$(MAKE) bench-tokens ARGS=--document
	$(MAKE) bench-tensorflow-int8 ARGS=--document
	$(MAKE) bench-input ARGS=--document

# The tables of models on the pages in docs/models/.
models: .venv/training.installed
	.venv/bin/python -m benchmarks.models

# The list of published weights.
weights: .venv/training.installed
	.venv/bin/python -m benchmarks.weights > docs/weights.md

# The documentation site, in docs/_build/html. Warnings are errors. Notebooks run if they have changed.
docs: .venv/docs.installed
	.venv/bin/python -m sphinx --jobs auto --quiet --fail-on-warning --keep-going --builder html docs docs/_build/html

.venv/%.installed: setup.cfg pyproject.toml | .venv/bin/python
	@echo "Installing into .venv what setup.cfg names for $*: a few minutes, and about 3 GB."
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check $(EDITABLE) '.[$*]'
	@touch $@

.venv/bin/python:
	@$(or $(PYTHON),false) -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
		2>/dev/null || { echo "No Python from 3.11 to 3.13 with the venv module was found. Install one" \
		"(on Debian and Ubuntu: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv .venv-lowest .venv-peers
