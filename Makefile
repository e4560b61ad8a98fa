# How to work on dash: every target is one or two lines. A fresh clone needs nothing but
# `make demo` or `make test`; both make the virtual environment and build first.
#
#   VENV     the virtual environment, made if it is not there          (default .venv)
#   PYTHON   makes it; if it has torch >= 2.14, the environment sees its packages and nothing that
#            is there is downloaded again                              (default python3)

VENV ?= .venv
PYTHON ?= python3
PYTEST_FLAGS ?=
TOOLS ?= memcheck racecheck synccheck

PY := $(abspath $(VENV))/bin/python
export PATH := $(abspath $(VENV))/bin:$(PATH)

.PHONY: environment build install demo test test-cpu test-schedule gpu-report bench sanitize lint \
        kernel-stats schedule-pictures instantiations wheel clean

environment:
	@$(PYTHON) .ci/make_venv.py $(VENV)

# Both extensions, beside the Python sources; _C only where there is an nvcc. Incremental.
build: environment
	$(PY) setup.py --quiet build_ext --inplace

# Editable install, once a virtual environment: what `pip install --no-build-isolation -e .` does.
install: build
	@$(PY) -m pip show --quiet dash-attn 2>/dev/null || \
	  $(PY) -m pip install --quiet --no-build-isolation --no-deps --editable .

demo: install
	$(PY) -m dash.demo

test: install
	$(PY) -m pytest $(PYTEST_FLAGS)

test-cpu: install
	CUDA_VISIBLE_DEVICES= $(PY) -m pytest $(PYTEST_FLAGS)

test-schedule: install
	$(PY) -m pytest tests/schedule $(PYTEST_FLAGS)

# Needs a Hopper GPU; writes reports/gpu.json.
gpu-report: install
	$(PY) -m bench.gpu_report

bench: install
	$(PY) -m bench.bench_attention

# Needs a Hopper GPU. Each kernel family, small, under each of TOOLS.
sanitize: install
	$(PY) -m tests.gpu.smoke --sanitize $(TOOLS)

lint: environment
	@$(PYTHON) .ci/make_venv.py $(VENV) lint
	$(PY) -m ruff check . && $(PY) csrc/lint.py

# Registers and spills of each kernel, from the last build, into bench/kernel_stats.json.
kernel-stats: build
	$(PY) -m bench.kernel_stats --write

# The pictures of docs/schedules.md.
schedule-pictures: install
	@$(PYTHON) .ci/make_venv.py $(VENV) plot
	$(PY) docs/pictures/make.py

instantiations:
	$(PYTHON) csrc/instantiate.py

wheel: environment
	$(PY) -m pip wheel --no-build-isolation --no-deps --wheel-dir dist .

clean:
	rm -rf build dist *.egg-info dash/*.so
