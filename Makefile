# Everything here starts from a fresh clone and a python3 of 3.11 or newer; the first run installs what it needs.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin
# Torch is named first and by itself, so that pip settles on the pinned build before anything else asks for one.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test lint bench venv clean

help:
	@echo "make demo   watch a draft model learn, with the pair that ships with osd"
	@echo "make test   run every test"
	@echo "make lint   style, types, and who imports whom"
	@echo "make bench  measure decoding and online learning with the shipped pair"
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
