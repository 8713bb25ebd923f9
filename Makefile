PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The versions of what builds are pinned too; pip 25.3 and newer read the second variable for that.
PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	$(BIN)/python -m pip --disable-pip-version-check install --quiet

SIDE_BY_SIDE := --numprocesses 2 --dist worksteal

.PHONY: run test unit coverage lint test-system test-slow docs bench chains sharing parity speed study \
	baselines comparison hostile lock format clean

# The whole pipeline on real CarRacing, in minutes.
run: $(VENV)/.run
	$(BIN)/python -m worldmodels stage=all preset=quick

# Every change has to pass it: five minutes on two cores.
test: $(VENV)/.dev
	@$(MAKE) --no-print-directory --jobs=2 lint unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# One computing thread a process: what runs side by side shares the cores. The slowest tests are
# listed: one that takes ten seconds belongs to `make test-system`.
unit: export OMP_NUM_THREADS = 1
unit: $(VENV)/.dev
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --durations 20 --durations-min 3

# The lines and branches that the tests run, those of `make test` and the longer ones beside them:
# fails below the share in pyproject.toml. Tracing takes as long as the tests.
coverage: export OMP_NUM_THREADS = 1
coverage: $(VENV)/.dev
	@rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest $(SIDE_BY_SIDE) --quiet -m "not slow" --ignore tests/system
	@$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# With real programs beside ours (a wheel in an empty environment, an X server, Doom, an Atari game,
# numba's simulator of a GPU), and chains that take long: rounds, kills.
test-system: export OMP_NUM_THREADS = 1
test-system: $(VENV)/.dev
	$(BIN)/python -m pytest -m "system and not slow" --numprocesses 2 --dist loadfile \
		--no-loadscope-reorder

# Tests that take minutes: kill and resume at random moments, the quick preset's scores.
test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

# The documentation as a site, in site/; a warning is an error.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The native CarRacing beside Gymnasium's, and its speed: minutes each.
parity: $(VENV)/.dev
	$(BIN)/python benchmarks/carracing_parity.py

speed: $(VENV)/.dev
	$(BIN)/python benchmarks/carracing_speed.py

# Variants of run=laptop and of run=takecover, on their VAE and MDN-RNN: many hours each.
study: $(VENV)/.dev
	$(BIN)/python benchmarks/study.py carracing
	$(BIN)/python benchmarks/study.py takecover

# Encoders and dynamics models beside the paper's, on one thread: hours; or flags="--seed=1".
comparison: $(VENV)/.dev
	$(BIN)/python benchmarks/model_comparison.py carracing $(rows) $(flags)
	$(BIN)/python benchmarks/model_comparison.py takecover $(rows) $(flags)

# Model-free baselines beside world models: hours; or rows="environment/ppo", flags="--seed=1".
baselines: $(VENV)/.dev
	$(BIN)/python benchmarks/baselines.py $(rows) $(flags)

# Every part beside the plain loops that most reimplementations have: 20 minutes, or rows="vae rnn".
bench: $(VENV)/.dev
	$(BIN)/python benchmarks/throughput.py $(rows)

# Kills, damage and hostile files by the hundred: a quarter of an hour on two slow cores; or
# topics="kills two", flags="seed=7 kills=200".
hostile: $(VENV)/.dev
	$(BIN)/python benchmarks/hostile/run.py $(topics) $(flags)

# One small run by local workers, Ray, Slurm, the image, SkyPilot's commands, and with kills: equal
# artifacts; half an hour, or places="ray slurm".
chains: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python benchmarks/chains.py $(places) $(flags)

# Training beside busy processes: a quarter of an hour.
sharing: $(VENV)/.dev
	$(BIN)/python benchmarks/sharing.py

# The versions and hashes of everything that is installed, from pyproject.toml; flags=--upgrade for
# the newest.
lock: $(VENV)/.dev
	$(BIN)/python locks/make.py $(flags)

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
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis site
