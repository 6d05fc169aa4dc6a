# `make demo` and `make test` each work as the first command in a fresh clone: Python 3.11, make and
# g++ are all they need. They create .venv, install there what they need of setup.py's extras in the
# versions of constraints.txt, and run. PYTHON, VENV, LEGACY_PYTHON and WHEELHOUSE can be given on the
# command line.

# The first that runs: pyenv leaves commands in the PATH that only say which version to choose.
first_running = $(firstword $(foreach p,$(1),$(shell $(p) -c 'import sys; print(sys.executable)' 2>/dev/null)))
PYTHON ?= $(call first_running,python3.11 python3.12 python3.13 python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# what tests, linters and the documentation need, too
ALL_STAMP := $(VENV)/.installed-all

LEGACY_PYTHON ?= $(call first_running,python3.10 $(wildcard $(HOME)/.pyenv/versions/3.10*/bin/python3.10))
LEGACY_VENV ?= .venv-legacy
LEGACY_STAMP := $(LEGACY_VENV)/.installed

# Old pip constrains builds of dependencies by PIP_CONSTRAINT, pip 25.3 and newer by
# PIP_BUILD_CONSTRAINT: without, the build of fairseq would fetch another torch.
CONSTRAINTS := $(abspath constraints.txt)
INSTALL_ENV := PIP_CONSTRAINT=$(CONSTRAINTS) PIP_BUILD_CONSTRAINT=$(CONSTRAINTS) PIP_DISABLE_PIP_VERSION_CHECK=1

# `make wheelhouse` builds wheels into a folder; `make install WHEELHOUSE=FOLDER` takes them there.
WHEELHOUSE ?=
FIND_LINKS := $(if $(WHEELHOUSE),--find-links $(abspath $(WHEELHOUSE)))
# what has no wheel in package indexes
BUILT := fairseq-fixed antlr4-python3-runtime
need_compiler = command -v g++ >/dev/null || { echo "g++ is missing: fairseq is built from source (apt-get install g++; docs/install.md: Without a compiler)" >&2; exit 2; }

# Spinning OpenMP threads cost minutes where cores are few or shared.
export OMP_WAIT_POLICY ?= PASSIVE
# Without bytecode, which images of containers forbid, each process compiles the package again.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help install wheelhouse check test soak bench lint demo docs dist-check test-legacy clean

help:
	@echo "make demo         train a model for each of the five tasks on drawings, show them on a page (demo/)"
	@echo "make install      install everything: all extras, tests, linters, documentation"
	@echo "make check        run ruff and the fast tests, before each commit (one minute)"
	@echo "make test         run all tests but the long ones"
	@echo "make soak         run the long tests too"
	@echo "make bench        measure our speed beside other programs and the machine's limit"
	@echo "make wheelhouse   build fairseq's wheel once; make install WHEELHOUSE=wheelhouse takes it"
	@echo "make lint         ruff and mypy"
	@echo "make docs         build the documentation (site/)"
	@echo "make dist-check   build the packages, install and try each away from the checkout"
	@echo "make test-legacy  train, generate and resume on stock fairseq 0.12.2 with Python 3.10"

$(STAMP): setup.py constraints.txt
	@test -n "$(PYTHON)" || { echo "no python3.11 found: make PYTHON=/path/to/python3.11 ..." >&2; exit 2; }
	@test -n "$(wildcard $(WHEELHOUSE)/fairseq_fixed-*.whl)" || $(need_compiler)
	@echo "Installing into $(VENV): 6.1 GB. pip prints nothing for some minutes."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL_ENV) $(BIN)/python -m pip install -q $(FIND_LINKS) torch torchvision
	$(INSTALL_ENV) $(BIN)/python -m pip install -q $(FIND_LINKS) -e '.[fairseq,report,video]'
	touch $@

$(ALL_STAMP): $(STAMP)
	@echo "Installing what tests need: another 1.0 GB."
	$(INSTALL_ENV) $(BIN)/python -m pip install -q $(FIND_LINKS) -e '.[fairseq,eval,heif,video,convert,models,hub,report,serve,timm,docs,dev]'
	touch $@

install: $(ALL_STAMP)

wheelhouse:
	@test -n "$(PYTHON)" || { echo "no python3.11 found: make PYTHON=/path/to/python3.11 ..." >&2; exit 2; }
	@$(need_compiler)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL_ENV) $(BIN)/python -m pip wheel -q --no-deps --wheel-dir $(or $(WHEELHOUSE),wheelhouse) $(BUILT)

# The tests that find most for their seconds, measured file by file: registration, directions of
# imports, contracts of all models at tiny sizes, equations, losses, metrics, collating, rankings,
# parsing, and outputs of checkpoints from earlier versions. The slow files of these folders are left
# to `make test`.
CHECK_TESTS := tests/test_import_directions.py tests/test_registration.py tests/criterions \
	tests/data tests/generation tests/metrics tests/models tests/modules tests/ngrams tests/optim \
	tests/retrieval tests/cli/test_main.py tests/tasks/test_generation_options.py tests/golden
CHECK_SLOW := data/test_feature_store_writer metrics/test_content_f1 \
	metrics/test_meteor models/test_presets models/test_vg_bart_training \
	models/test_vg_t5_commands

check: $(ALL_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(CHECK_TESTS) \
		$(CHECK_SLOW:%=--ignore=tests/%.py) $(PYTEST_ARGS)

test: $(ALL_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

soak: $(ALL_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "slow or not slow" $(PYTEST_ARGS)

bench: $(ALL_STAMP)
	$(INSTALL_ENV) $(BIN)/python -m pip install -q -e '.[bench]'
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/run.py $(BENCH_ARGS)

lint: $(ALL_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(STAMP)
	$(BIN)/python examples/demo/run_demo.py --output demo

docs: $(ALL_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

dist-check: $(ALL_STAMP)
	$(BIN)/python scripts/check_dist.py

# Stock fairseq's requirements can only be read by pip older than 24.1.
$(LEGACY_STAMP): setup.py constraints.txt
	@test -n "$(LEGACY_PYTHON)" || { echo "no Python 3.10 found: make LEGACY_PYTHON=/path/to/python3.10 test-legacy" >&2; exit 2; }
	test -x $(LEGACY_VENV)/bin/python || $(LEGACY_PYTHON) -m venv $(LEGACY_VENV)
	$(LEGACY_VENV)/bin/python -m pip install -q 'pip<24.1'
	$(INSTALL_ENV) $(LEGACY_VENV)/bin/python -m pip install -q torch torchvision
	$(INSTALL_ENV) $(LEGACY_VENV)/bin/python -m pip install -q -e '.[fairseq]' pytest
	touch $@

test-legacy: $(LEGACY_STAMP)
	OMP_NUM_THREADS=1 $(LEGACY_VENV)/bin/python -m pytest tests/smoke $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) $(LEGACY_VENV) demo build dist site *.egg-info
