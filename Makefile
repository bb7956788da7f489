# Both `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEV := .venv/.dev
SEED ?= 1

.PHONY: demo test test-slow test-all test-network test-experiments chaos fuzz lint docs bench
.PHONY: bench-network bench-peers clean

demo: $(READY)
	$(BIN)/coterie demo --out demo

# What people run while they work: at most six minutes on two quiet cores.
test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not experiments and not network"

# The rest: statistics over many seeds, kills of real processes, whole pages of the documents.
test-slow: $(DEV)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not network"

test-all: test test-slow test-experiments test-network

# Every experiment of `python -m reproduction` at its smallest scale; those that need data sets which are
# not there are skipped.
test-experiments: $(DEV)
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/reproduction -m experiments

# A server and its sites as real processes, our own and stock ones of Flower (the extra `flower`),
# and peers: at most ten minutes on two quiet cores.
test-network: $(DEV)
	$(BIN)/pip install --quiet --no-build-isolation -c constraints.txt -e '.[network,flower]'
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/network -m network --durations=15

# Kills of run, compare, search, compare --tune, export and report before each change of a file; then
# a network of six nodes with ten kills, a slow node and a lying one. Other moments: make chaos SEED=2
chaos: $(DEV)
	COTERIE_CHAOS=all COTERIE_CHAOS_SEEDS=$(SEED) $(BIN)/python -m pytest tests/chaos -s

# Damaged input of every kind, about 9,000 cases in at most ten minutes. Another seed, other cases:
# make fuzz SEED=2
fuzz: $(DEV)
	$(BIN)/python -m pytest tests/fuzz --hypothesis-profile=fuzz --hypothesis-seed=$(SEED)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(DEV)
	$(BIN)/python -m mkdocs build --strict

bench: $(READY)
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/speed.py

# A round against other libraries, each in an environment of its own under .venv-peers: about 25
# minutes on two quiet cores, and as long again for the installation the first time.
bench-peers: $(READY)
	$(BIN)/python benchmarks/peers.py

# What an exchange with real sites costs, with our own nodes and with stock Flower.
bench-network: $(READY)
	$(BIN)/pip install --quiet --no-build-isolation -c constraints.txt -e '.[network,flower]'
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
