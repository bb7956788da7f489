# Both `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEV := .venv/.dev

.PHONY: demo test test-slow test-all test-network chaos fuzz lint docs bench bench-network clean

demo: $(READY)
	$(BIN)/coterie demo --out demo

# What people run while they work: at most six minutes on two quiet cores.
test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

# The rest: statistics over many seeds, kills of real processes, whole pages of the documents.
test-slow: $(DEV)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

test-all: test test-slow

# A server and its sites as real processes, over Flower: needs the extra `network`, about 15 minutes.
test-network: $(DEV)
	$(BIN)/pip install --quiet --no-build-isolation -c constraints.txt -e '.[network]'
	$(BIN)/python -m pytest tests/network -m network

# Kills of run, compare, search, compare --tune, export and report before each change of a file.
chaos: $(DEV)
	COTERIE_CHAOS=all $(BIN)/python -m pytest tests/chaos -s

# Damaged input of every kind, about 3,000 cases in at most ten minutes. Another seed, other cases:
# make fuzz SEED=2
SEED ?= 1
fuzz: $(DEV)
	$(BIN)/python -m pytest tests/fuzz --hypothesis-profile=fuzz --hypothesis-seed=$(SEED)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(DEV)
	$(BIN)/python -m mkdocs build --strict

bench: $(READY)
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/memory.py

# What an exchange with real sites costs, with our own nodes and with stock Flower.
bench-network: $(READY)
	$(BIN)/pip install --quiet --no-build-isolation -c constraints.txt -e '.[network]'
	$(BIN)/python benchmarks/network.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet torch==2.13.0 setuptools -c constraints.txt
	$(BIN)/pip install --quiet --no-build-isolation -c constraints.txt -e .
	touch $(READY)

$(DEV): $(READY)
	$(BIN)/pip install --quiet --no-build-isolation -c constraints.txt -e '.[dev]'
	touch $(DEV)

clean:
	rm -rf .venv demo runs site build dist .pytest_cache .mypy_cache .ruff_cache
