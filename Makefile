# Each target sets up all that it needs; a second run is fast. PYTHON chooses the interpreter (3.11 or newer).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH := $(VENV)/bench

.DEFAULT_GOAL := test
.PHONY: bench demo matrix preview stack test tools

# pytest's own line comes last: what stands there is the result.
test: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict otel_breaker
	$(BIN)/python -m pytest

# Other interpreters, and other versions of what the package stands on. ARGS: -s NAME, --list.
matrix: $(VENV)/.dev
	.ci/newest-python
	$(BIN)/python .ci/matrix $(BIN)/nox $(ARGS)

demo: $(VENV)/.package
	$(BIN)/otel-breaker demo

# For the page path: the Collector, built once (minutes), and Debian's Prometheus, Alertmanager and Redis.
tools:
	collector-config/build/tools.sh

# The page path from real servers on loopback: a page opens and resolves. ARGS: --keep, --cooldown SECONDS.
stack: $(VENV)/.package tools
	$(BIN)/python -m tests.support.page_path $(ARGS)

# Draws docs/img/dashboard-*.png with Grafana's own components; needs node, npm and chromium. ARGS: --prometheus URL.
preview: $(VENV)/.dev
	$(BIN)/python -m grafana.preview.run $(ARGS)

# The peers get an environment of their own. ARGS: --json FILE, --seconds N, --only TEXT.
bench: $(BENCH)/.ready
	$(BENCH)/bin/python -m tests.benchmarks $(ARGS)

$(BENCH)/.ready: pyproject.toml | $(BIN)/python
	$(BIN)/python -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	touch $@

$(VENV)/.package: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@ $(VENV)/.package

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "otel-breaker needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo 'otel-breaker needs the venv module: apt-get install python3-venv, or another PYTHON=...'; exit 1; }
