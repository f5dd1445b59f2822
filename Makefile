# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python

# More workers than cores: the tests of real processes wait more than they compute. A file's tests share what they set up.
PYTEST := $(RUN) -m pytest --dist loadfile --no-loadscope-reorder --durations 20 --durations-min 1

.PHONY: run test types suite slow lies evidence docs lint lock clean

run: $(VENV)/.installed  ## HyperFL on the digits, audited; prints where the report is
	$(RUN) sim.py

test: $(VENV)/.installed  ## the suite: lint, types, tests
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(MAKE) --no-print-directory --jobs 2 types suite

types: $(VENV)/.installed
	$(VENV)/bin/pyright

suite: $(VENV)/.installed
	$(PYTEST) -m "not slow and not nightly" -n 3

# Slow tests that compare times, or whose processes (gRPC, Ray) take all cores: no other test runs beside one of them.
ALONE := tests/deploy tests/engines tests/server tests/storage tests/house/test_example.py \
	tests/methods/test_server_training.py tests/runs/test_estimate.py

slow: $(VENV)/.installed  ## the tests that take minutes each
	$(PYTEST) -m slow -n 2 --timeout 900 $(addprefix --ignore=,$(ALONE))
	$(PYTEST) -m slow $(ALONE)

# Two hundred lies of clients and of a server, told to real sites. They take more minutes than all others have.
LIES := tests/deploy/test_evil_clients.py tests/deploy/test_evil_server.py

lies: $(VENV)/.installed  ## the lies of clients and of a server over gRPC
	$(PYTEST) -m "slow or nightly" $(LIES)

# The tests start a hundred processes. Where this variable is set, each compiles anew all that it imports.
suite slow lies: export PYTHONDONTWRITEBYTECODE :=

MINUTES ?= 150
CORES ?= 1

evidence: $(VENV)/.installed  ## the next cells of the papers' tables at full scale, at the lowest priority; docs/evidence.md
	$(RUN) -m flfw.papers.evidence --minutes $(MINUTES) --cores $(CORES)

docs: $(VENV)/.installed  ## the site of docs/ in build/site, without a network; a warning ends it
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# The environment: a venv, uv inside it, then exactly the pinned packages (torch with CUDA: about 7 GB in all) and this project.
$(VENV)/.installed: requirements.txt pyproject.toml
	@echo "Setting up $(VENV): this downloads PyTorch with CUDA and its friends, about 3 GB, and unpacks to about 7 GB."
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet uv
	$(VENV)/bin/uv pip sync --quiet --compile-bytecode --python $(RUN) requirements.txt
	$(VENV)/bin/uv pip install --quiet --python $(RUN) --no-deps --editable .
	touch $@

lock:  ## pin anew what pyproject.toml allows; names no registry
	$(VENV)/bin/uv pip compile --quiet --universal --no-annotate --no-header --extra dev --extra stand-in \
		pyproject.toml -o requirements.txt

clean:
	rm -rf $(VENV) runs build
