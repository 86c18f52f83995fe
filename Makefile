# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Each builds its own environment in .venv/ from requirements.lock.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test scenarios histories chaos fuzz check format proto lock clean

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make demo    one server, eight trainers, two unlabelled newcomers, over gRPC on this machine
demo: .venv/built
	@$(BIN)/fedserver demo

## make test    every test
test: .venv/built
	@scripts/test

## make scenarios  record the scenarios of the round engine again; review the difference before you commit it
scenarios: .venv/built
	@$(BIN)/python -m tests.scenarios --record

## make histories   10,000 seeded random histories of faults, for the night; SHOAL_HISTORIES=n plays n
histories: .venv/built
	@SHOAL_HISTORIES=$${SHOAL_HISTORIES:-10000} scripts/test tests/histories

## make chaos   real processes under real faults: 150 runs in half an hour to an hour, and 500 devices at once
chaos: .venv/built
	@$(BIN)/python -m tests.chaos --runs 150 --seed 42 --out runs/chaos
	@$(BIN)/python benchmarks/reconnect.py --json runs/chaos/reconnect.json

## make fuzz    a minute of hostile bytes for every decoder that a peer can reach
fuzz: .venv/built
	@scripts/fuzz

## make check   ruff, mypy, import floors, the contract and its generated code
check: .venv/built
	@scripts/check

## make format  let ruff put the code into shape
format: .venv/built
	@$(BIN)/ruff check --fix-only --quiet . && $(BIN)/ruff format .

## make proto   generate shoal/core/exchange/_pb from proto/
proto: .venv/built
	@scripts/generate

## make lock    write requirements.lock anew from what .venv/ holds
lock:
	@scripts/lock

## make clean   remove the environment and what runs left behind
clean:
	rm -rf .venv runs build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis node_modules

.venv/built: requirements.lock pyproject.toml scripts/environment
	@PYTHON=$(PYTHON) scripts/environment
