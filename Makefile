# `make help` lists what there is. Every target sets up .venv from the lock first.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

PYTHON ?= python3
CORES ?= $(shell getconf _NPROCESSORS_ONLN)
BIN := .venv/bin
STAMP := .venv/.ready

.PHONY: help setup demo test test-all coverage lint format faults bench lock schema clean

help:           ## show this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## */\t/' | expand -t 12

$(STAMP): requirements.lock pyproject.toml
	@echo "setting up .venv from requirements.lock"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedshift needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
	  --requirement <(awk '/^[^ ]/ { mine = /^uv==/ } mine' requirements.lock)
	$(BIN)/uv pip sync --quiet --compile-bytecode --require-hashes --python $(BIN)/python requirements.lock
	$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --python $(BIN)/python --editable .
	touch $@

setup: $(STAMP) ## set up the environment alone

demo: $(STAMP)  ## run the demo study end to end and print where its page is
	@$(BIN)/snakemake --cores $(CORES) --config study=demo scale=mini
	echo "The page: reports/demo.html"

test: $(STAMP)  ## run all tests; of the studies of papers, a third each day
	@$(BIN)/python -m pytest -n $(CORES) --dist loadfile

test-all: $(STAMP) ## run all tests, and all studies of papers at mini scale
	@STUDIES=all $(BIN)/python -m pytest -n $(CORES) --dist loadfile

coverage: $(STAMP) ## run all tests and list the lines of src that none reaches
	@$(BIN)/python -m pytest -n $(CORES) --dist loadfile --cov --cov-report=term

lint: $(STAMP)  ## check style, types, floors and workflow
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/snakemake --lint

format: $(STAMP) ## format the sources
	@$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow

faults: $(STAMP) ## disturb the workflow FAULTS times (120), damage and falsify every file of a study, and check what is left
	@$(BIN)/python tests/faults/campaign.py
	$(BIN)/python tests/faults/damage.py
	$(BIN)/python tests/faults/misread.py

bench: $(STAMP) ## measure speed and memory as ratios; writes benchmarks/results/DATE.json
	@$(BIN)/python benchmarks/run.py

lock: $(STAMP)  ## resolve requirements.lock again
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --all-extras --group dev --group setup pyproject.toml -o requirements.lock --upgrade

schema: $(STAMP) ## write what is generated: config/study.schema.json, docs/algorithms.md
	@$(BIN)/fedshift schema > config/study.schema.json
	$(BIN)/fedshift algorithms > docs/algorithms.md

clean:          ## remove results and reports (resources/ stays)
	rm -rf results reports/*.html .snakemake
