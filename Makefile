# `make help` lists what there is. Every target sets up .venv from the lock first.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

PYTHON ?= python3
CORES ?= $(shell getconf _NPROCESSORS_ONLN)
BIN := .venv/bin
STAMP := .venv/.ready
EXPORTS := .venv-exports/bin
EXPORTS_STAMP := .venv-exports/.ready
FLOWER := .venv-flower/bin
FLOWER_STAMP := .venv-flower/.ready
DOCS := .venv-docs/bin
DOCS_STAMP := .venv-docs/.ready
# What UV_TORCH_BACKEND=cpu leaves out of the lock: that index has files of its own, with other checksums than the lock's.
CUDA := torch|torchvision|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+
SYNC = $(BIN)/uv pip sync --quiet --compile-bytecode --require-hashes --python $(BIN)/python
INSTALL = $(BIN)/uv pip install --quiet --no-deps --python $(BIN)/python

.PHONY: help setup exports flower docs demo federation test test-all test-coverage lint format faults bench coverage gpu lock schema reproduce claims gallery clean

help:           ## show this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## */\t/' | expand -t 12

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedshift needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	echo "1/3 .venv of $$($(PYTHON) --version), and uv, which installs the rest: 60 MB"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
	  --requirement <(awk '/^[^ ]/ { mine = /^uv==/ } mine' requirements.lock)
	torch=$$(awk '/^(torch|torchvision)==/ { print $$1 }' requirements.lock)
	if [ "$${UV_TORCH_BACKEND:-}" = cpu ]; then
	  echo "2/3 requirements.lock, 1.2 GB on disk; then" $$torch "without CUDA, 0.7 GB, whose checksums are not in the lock"
	  awk '/^[^ ]/ { mine = !/^($(CUDA))==/ } mine' requirements.lock > .venv/without-cuda.txt
	  $(SYNC) .venv/without-cuda.txt
	  $(INSTALL) --compile-bytecode $$torch
	else
	  echo "2/3 requirements.lock: with" $$torch "and, on Linux, CUDA 6.5 GB on disk, a minute or more"
	  echo "    (UV_TORCH_BACKEND=cpu make setup: without CUDA, 2 GB)"
	  $(SYNC) requirements.lock
	fi
	echo "3/3 fedshift itself, from src"
	$(INSTALL) --no-build-isolation --editable .
	touch $@

# An environment of its own beside .venv, in which Python finds the packages of .venv too.
define BESIDE
	test -x $(@D)/bin/python || $(BIN)/python -m venv --without-pip $(@D)
	where='import sysconfig; print(sysconfig.get_path("purelib"))'
	echo "import site; site.addsitedir('$$($(BIN)/python -c "$$where")')" > "$$($(@D)/bin/python -c "$$where")/venv.pth"
	$(BIN)/uv pip sync --quiet --compile-bytecode --require-hashes --python $(@D)/bin/python $(filter %.lock,$^)
	touch $@
endef

# The libraries that runs are exported to, OpenSlide, and weights of ImageNet.
$(EXPORTS_STAMP): $(STAMP) requirements-exports.lock
	@echo ".venv-exports: MLflow, Ignite, OpenSlide and weights beside .venv, for tests and types: 170 MB on disk"
	$(BESIDE)

# What joins real sites. It wants other versions of two packages than .venv has, and finds its own first.
$(FLOWER_STAMP): $(STAMP) requirements-flower.lock
	@echo ".venv-flower: Flower beside .venv, for federations of real sites: 150 MB on disk"
	$(BESIDE)

# What builds the documentation site.
$(DOCS_STAMP): $(STAMP) requirements-docs.lock
	@echo ".venv-docs: MkDocs, Material and mkdocstrings beside .venv, for the documentation site: 120 MB on disk"
	$(BESIDE)

setup: $(STAMP) ## set up the environment alone

exports: $(EXPORTS_STAMP) ## set up .venv-exports too, with MLflow, Ignite, OpenSlide and weights of ImageNet

flower: $(FLOWER_STAMP) ## set up .venv-flower too, with Flower

docs: $(DOCS_STAMP) ## build the documentation site into site/, strictly
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/python -m mkdocs build --quiet --strict
	echo "The site: site/index.html"

demo: $(STAMP)  ## run the demo study end to end and print where its page is
	@$(BIN)/snakemake --cores $(CORES) --config study=demo scale=mini

federation: $(FLOWER_STAMP) ## train between three sites over Flower on this machine, and compare with the simulation
	@$(FLOWER)/python docs/federate.py

# tests/parts.py says which parts there are. An environment that cannot be set up fails the part that needs it, and stops
# no other. WORKERS=N: so many processes, in the place of one more than there are cores.
SET_UP = $(MAKE) --no-print-directory --keep-going
PARTS = $(BIN)/python tests/parts.py

test: $(STAMP)  ## run the tests; of long lists (all methods, studies of papers) each day has a part
	@$(SET_UP) $(EXPORTS_STAMP) $(DOCS_STAMP) || true
	$(PARTS)

test-all: $(STAMP) ## run all tests: what a day has only a part of, too, and real sites over Flower
	@$(SET_UP) $(EXPORTS_STAMP) $(DOCS_STAMP) $(FLOWER_STAMP) || true
	$(PARTS) --all

test-coverage: $(STAMP) ## run all tests and list the lines of src that none reaches
	@$(SET_UP) $(EXPORTS_STAMP) $(DOCS_STAMP) || true
	$(PARTS) --coverage

lint: $(EXPORTS_STAMP)  ## check style, types, layers and workflow
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/mypy --python-executable $(EXPORTS)/python
	$(BIN)/lint-imports
	$(BIN)/snakemake --lint

format: $(STAMP) ## format the sources
	@$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow

faults: $(EXPORTS_STAMP) ## disturb the workflow FAULTS times (120), damage and falsify every file of a study, and check what is left
	@$(BIN)/python tests/faults/campaign.py
	$(BIN)/python tests/faults/damage.py
	$(BIN)/python tests/faults/forge.py
	$(EXPORTS)/python tests/faults/misread.py

bench: $(STAMP) ## measure speed and memory as ratios; writes benchmarks/results/DATE.json
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/run.py # processor time, in which threads that wait would count

coverage: $(STAMP) ## simulate how often intervals and verdicts are right, and write the tables into docs/coverage.md
	@$(BIN)/python benchmarks/simulated.py --write
	@$(BIN)/python benchmarks/promises.py --write

gpu: $(STAMP)    ## on a GPU: right numbers, speed over a bare loop, hours of studies; within 7 minutes (PART=..., MINUTES=...)
	@$(BIN)/python benchmarks/gpu.py $(PART) --minutes $(or $(MINUTES),7)

COMPILE = env -u UV_TORCH_BACKEND $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --no-header --no-annotate
PACKAGE = $(COMPILE) --group dev --group setup pyproject.toml
BEYOND = awk 'NR == FNR { if (/^[^ ]/) common[$$0]; next } /^[^ ]/ { mine = !($$0 in common) } mine' requirements.lock "$$whole"

EXTRAS = $(addprefix --extra ,bundle mlflow pretrained slides)
# Flower wants an older rich and a newer certifi than the others.
APART = rich|certifi

lock: $(STAMP)  ## resolve requirements.lock again, and beyond it those of exports, Flower and the documentation site
	@whole=$$(mktemp)
	trap 'rm "$$whole"' EXIT
	$(PACKAGE) $(EXTRAS) -o "$$whole"
	$(PACKAGE) --constraint "$$whole" -o requirements.lock --upgrade
	$(BEYOND) > requirements-exports.lock
	awk '/^[^ ]/ { mine = !/^($(APART))==/ } mine' requirements.lock > .venv/without-apart.txt
	$(COMPILE) --extra flower --constraint .venv/without-apart.txt pyproject.toml -o "$$whole" --upgrade
	$(BEYOND) > requirements-flower.lock
	$(COMPILE) --group docs --constraint requirements.lock -o "$$whole" --upgrade
	$(BEYOND) > requirements-docs.lock

schema: $(STAMP) ## write what is generated: config/study.schema.json, docs/algorithms.md
	@$(BIN)/fedshift schema > config/study.schema.json
	$(BIN)/fedshift algorithms > docs/algorithms.md

reproduce: $(EXPORTS_STAMP) ## repeat a reproduction from the archives in FEDSHIFT_TEST_DATA: make reproduce STUDY=fedtan-fig6
	@$(EXPORTS)/python docs/reproduce.py "$(STUDY)" --cores $(CORES)

claims: $(STAMP)  ## write the table of the papers' claims into docs/reproductions.md, and docs/leaderboard.md
	@$(BIN)/python docs/claims.py
	$(BIN)/python docs/leaderboard.py

gallery: $(STAMP) ## put the page of a study into the documentation: make gallery STUDY=demo
	@$(BIN)/python docs/gallery.py "$(STUDY)" "$(PAGE)"

clean:          ## remove results and reports (resources/ stays)
	rm -rf results reports/*.html .snakemake
