# make demo: the whole product on an embedded data set.  make test: all tests.  make lint: style and types.
# make reproduce: the cheapest row of the table of checkpoints, trained and measured again.
# make bench: what a training step, an evaluation, a load and an answer of the server cost beside the bare work.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint reproduce bench clean

demo: $(VENV)/demo.installed
	$(BIN)/zoo demo

test: $(VENV)/dev.installed
	$(BIN)/python -m pytest --numprocesses auto

lint: $(VENV)/dev.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

reproduce: $(VENV)/demo.installed
	$(BIN)/zoo reproduce $(if $(DATA),--data '$(DATA)')

bench: $(VENV)/dev.installed
	PYTHONPATH=. $(BIN)/python tests/bench/step.py
	PYTHONPATH=. OMP_NUM_THREADS=1 $(BIN)/python tests/bench/eval_speed.py 50000 10000
	PYTHONPATH=. $(BIN)/python tests/bench/zoo_load.py 9
	PYTHONPATH=. $(BIN)/python tests/bench/serve_bench.py

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache

# One installation per set of extras, repeated when pyproject.toml changes.
$(VENV)/%.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.11")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing $* into $(VENV): several GB, some minutes"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	touch $@
