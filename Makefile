# `make` lists the verbs. Each sets up what it needs in .venv, once; PYTHON=python3.12 make … picks another Python.

PYTHON ?= python3
SCENARIO ?= scenarios/skewed64.yaml
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SETUP_FILES := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup run test check validate bench peers ci clean

help: ## list these verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.base ## create .venv and install simserve in it (no torch)

run: $(VENV)/.base ## replay 64 requests under four variants and write a report (SCENARIO=… picks another)
	@$(BIN)/simserve run $(SCENARIO)

test: $(VENV)/.all ## all tests but the slow tier, on two processes
	$(BIN)/python -m pytest -n 2 --dist worksteal $(TESTS)

check: $(VENV)/.all ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

validate: $(VENV)/.all ## the slow tier: queueing theory, other engines, spreads over seeds
	$(BIN)/python -m pytest -m validation

bench: $(VENV)/.all ## what a request costs: regimes, growth to a million requests, policies; then the older benchmarks
	$(BIN)/python -m tests.benchmarks.speed
	$(BIN)/python -m pytest -o addopts= --benchmark-only tests/benchmarks

peers: $(VENV)/.all ## other simulators on the same requests, each in an environment of its own under .benchmarks
	$(BIN)/python -m tests.benchmarks.peers

ci: ## everything that a change must pass, as the continuous build runs it
	bash .ci/run

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks simserve.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "simserve needs Python 3.11 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "cannot create $(VENV); on Debian: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.base: $(SETUP_FILES) | $(BIN)/python
	@echo "installing simserve"
	@$(PIP) -e .
	@touch $@

$(VENV)/.all: $(SETUP_FILES) | $(BIN)/python
	@echo "installing simserve with its extras calibrate, cluster, fast, search, test and text (torch is large: a minute or two)"
	@$(PIP) -e '.[calibrate,cluster,fast,search,test,text]'
	@touch $@ $(VENV)/.base
