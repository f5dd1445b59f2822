# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python

PYTEST := $(RUN) -m pytest --dist loadfile --no-loadscope-reorder --durations 20 --durations-min 1

.PHONY: run test lint quick slow nightly evidence docs format lock clean

run: $(VENV)/.installed  ## HyperFL on the digits, audited; prints where the report is
	$(RUN) sim.py

test: $(VENV)/.installed  ## what a commit needs: lint and the quick suite, at once
	$(MAKE) --no-print-directory --jobs 2 lint quick

lint: $(VENV)/.installed  ## style, the direction of imports, rules of names and lengths, types
	$(VENV)/bin/ruff check --quiet .
	$(VENV)/bin/ruff format --quiet --check .
	$(VENV)/bin/lint-imports --no-cache
	$(RUN) -m tests.house.rules
	$(VENV)/bin/pyright

quick: $(VENV)/.installed
	$(PYTEST) -m "not slow and not nightly" -n 2 --junit-xml build/tests/quick.xml

# Tests of processes (gRPC, Ray) that take all cores, or compare times: no other test runs beside one of them.
ALONE := tests/deploy tests/engines tests/server tests/files

slow: $(VENV)/.installed  ## each real part once, in minutes: Ray, gRPC, the wheel, a browser
	$(PYTEST) -m "slow and not nightly" -n 2 --timeout 900 --junit-xml build/tests/slow.xml $(addprefix --ignore=,$(ALONE))
	$(PYTEST) -m "slow and not nightly" --timeout 900 --junit-xml build/tests/alone.xml $(ALONE)

PARTS ?=

nightly: $(VENV)/.installed  ## all other tests, in parts of an hour at most; PARTS="engines audits" names some
	$(RUN) -m tests.nightly $(PARTS)

# The tests start many processes. Where this variable is set, each compiles anew all that it imports.
quick slow nightly: export PYTHONDONTWRITEBYTECODE :=

MINUTES ?= 150
CORES ?= 1
COMMIT ?= main

evidence: $(VENV)/.installed  ## the next cells of the papers' tables at full scale, by COMMIT's code, at the lowest priority; docs/tables/evidence.md
	$(RUN) -m research.evidence.landed $(COMMIT) --minutes $(MINUTES) --cores $(CORES)
	$(RUN) -m research.evidence --page

docs: $(VENV)/.installed  ## the site of docs/ in build/site, without a network; a warning ends it
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

format: $(VENV)/.installed
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
