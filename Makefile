PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: run test test-slow bench parity speed study lint format clean

# The whole pipeline on real CarRacing, in minutes.
run: $(VENV)/.run
	$(BIN)/python -m worldmodels stage=all preset=quick

# What every change must pass. A file's tests stay together: they share what a run left.
test: lint
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Proofs that take minutes: kill and resume at random moments, the quick preset's scores.
test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

# The native CarRacing beside Gymnasium's, and its speed: minutes each.
parity: $(VENV)/.dev
	$(BIN)/python benchmarks/carracing_parity.py

speed: $(VENV)/.dev
	$(BIN)/python benchmarks/carracing_speed.py

# Variants of run=laptop and of run=takecover, on their V and M: many hours each.
study: $(VENV)/.dev
	$(BIN)/python benchmarks/study.py carracing
	$(BIN)/python benchmarks/study.py takecover

# Every part beside the plain loops that most reimplementations have: minutes.
bench: $(VENV)/.dev
	$(BIN)/python benchmarks/throughput.py

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.run: pyproject.toml constraints.txt
	@echo "installing into $(VENV) (a few minutes the first time)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	@echo "installing into $(VENV) (a few minutes the first time)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
