# On a fresh machine, `make demo` and `make test` are all that is needed: each command first builds its
# environment in .venv/ from requirements.lock.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test scenarios histories chaos liars audit rot mutants fuzz check format docs dist proto lock clean

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make demo       one server, eight training devices and two unlabeled newcomers, over gRPC on this machine
demo: .venv/built
	@$(BIN)/fedserver demo

## make test       run every test
test: .venv/built
	@scripts/test

## make check      run ruff, mypy, the import contracts, the vocabulary check and the checks of the protocol
check: .venv/built
	@scripts/check

## make format     format the code with ruff
format: .venv/built
	@$(BIN)/ruff check --fix-only --quiet . && $(BIN)/ruff format .

## make docs       build the documentation site in build/site; needs no network
docs: .venv/built
	@$(BIN)/mkdocs build --quiet --strict && echo "open build/site/index.html"

## make dist       build wheels, source distributions and bills of materials in dist/, the same bytes each time
dist: .venv/built
	@$(BIN)/python scripts/dist

## make scenarios  record the scenarios of the round engine again; review the difference before you commit it
scenarios: .venv/built
	@$(BIN)/python -m tests.scenarios --record

## make histories  play 10,000 seeded random histories of faults, overnight; SHOAL_HISTORIES=n plays n
histories: .venv/built
	@SHOAL_HISTORIES=$${SHOAL_HISTORIES:-10000} scripts/test tests/histories

## make chaos      150 runs of real processes under real faults, for up to an hour, and 500 devices at a time
chaos: .venv/built
	@$(BIN)/python -m tests.chaos --runs 150 --seed 42 --out runs/chaos
	@$(BIN)/python -m benchmarks.reconnect --json runs/chaos/reconnect.json

## make liars      liars in number, in small fleets; goes on where it stopped; DATA=folder; writes docs/liars.md
liars: .venv/built
	@$(BIN)/python -m benchmarks.influence --out runs/liars.jsonl --data-dir "$(DATA)" --page docs/liars.md

## make audit      the epsilon that 10,000 releases of each kind prove, overnight; goes on where it stopped
audit: .venv/built
	@$(BIN)/python -m tests.audit --seconds 36000 --out runs/audit

## make rot        flip 1,000 bits of what a server stores, one at a time, while it works and while it is down
rot: .venv/built
	@$(BIN)/python -m tests.crash.rot --flips 1000 --seed 42

## make mutants    break the product on purpose, in 60 ways, and show which test finds each
mutants: .venv/built
	@$(BIN)/python -m tests.mutants

## make fuzz       a minute of hostile bytes for every decoder that a peer can reach
fuzz: .venv/built
	@scripts/fuzz

## make proto      generate shoal/core/exchange/_pb from proto/
proto: .venv/built
	@scripts/generate

## make lock       write requirements.lock and requirements/*.lock from the versions in .venv/
lock:
	@scripts/lock

## make clean      remove the environment and everything that was built or run
clean:
	rm -rf .venv runs build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis node_modules

.venv/built: requirements.lock pyproject.toml lab/pyproject.toml scripts/environment
	@PYTHON=$(PYTHON) scripts/environment
