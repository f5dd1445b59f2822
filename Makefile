# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python

.PHONY: run test slow lint lock clean

run: $(VENV)/.installed  ## HyperFL on the digits, audited; prints where the report is
	$(RUN) sim.py

test: $(VENV)/.installed  ## the suite: lint, types, tests
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright
	$(RUN) -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder

slow: $(VENV)/.installed  ## the tests that take minutes each
	$(RUN) -m pytest -m slow

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# The environment: a venv, uv inside it, then exactly the pinned packages (torch with CUDA: about 6 GB) and this project.
$(VENV)/.installed: requirements.txt pyproject.toml
	@echo "Setting up $(VENV): this downloads PyTorch with CUDA and its friends, about 3 GB, and unpacks to about 6 GB."
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet uv
	$(VENV)/bin/uv pip sync --quiet --python $(RUN) requirements.txt
	$(VENV)/bin/uv pip install --quiet --python $(RUN) --no-deps --editable .
	touch $@

lock:  ## pin anew what pyproject.toml allows; names no registry
	$(VENV)/bin/uv pip compile --quiet --universal --no-annotate --no-header --extra dev --extra papers \
		--constraint constraints.txt pyproject.toml -o requirements.txt

clean:
	rm -rf $(VENV) runs
