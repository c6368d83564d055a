# The two commands of the README. VENV and ARGS can be set: make run ARGS="--trainer.max_steps 4"
VENV ?= .venv
PYTHON := $(VENV)/bin/python
ARGS ?=

.PHONY: run test
.DEFAULT_GOAL := run

$(VENV)/.run: pyproject.toml
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --editable .
	touch $@

$(VENV)/.test: pyproject.toml
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --editable ".[dev]"
	touch $@ $(VENV)/.run

run: $(VENV)/.run
	$(PYTHON) -m svr_lightning fit --config configs/countdown_tiny.yaml $(ARGS)

test: $(VENV)/.test
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest $(ARGS)
