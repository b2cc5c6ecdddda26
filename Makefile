# Every target installs what it needs into .venv first; that happens again only when what is needed changes.
VENV ?= .venv
EXTRAS ?= cpu,dev
WORKERS ?= 2
INPUTS := pyproject.toml requirements-weights.txt scripts/install
STAMP := $(VENV)/installed-$(shell { echo $(EXTRAS); cat $(INPUTS); } | cksum | tr ' ' '-')
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install up demo format check test bench crashlab

help:
	@echo "make up      start the API and the console on http://127.0.0.1:8484"
	@echo "make demo    load the demo corpus, ask, delete the fact, ask again; one JSON object on stdout"
	@echo "make check   format, lint, types, layers, migrations"
	@echo "make test    make check, then the tests"
	@echo "make format  put the code in order"
	@echo "make bench   measure the store at 100,000 facts; some minutes, on an idle machine"
	@echo "make crashlab  kill processes at 500 seeded instants and check that nothing was lost; some minutes"

install: $(STAMP)

$(STAMP):
	scripts/install $(VENV) $(STAMP) $(EXTRAS)

up: $(STAMP)
	$(BIN)/colmlm up

demo: $(STAMP)
	@$(BIN)/colmlm up --no-serve >&2
	@$(BIN)/colmlm demo --json

format: $(STAMP)
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

check: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	PATH=$(abspath $(BIN)):$$PATH scripts/check-migrations

test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --cov --cov-report=term $(PYTEST_ARGS)

bench: $(STAMP)
	$(BIN)/colmlm bench store --facts 100000 --dim 576

crashlab: $(STAMP)
	$(BIN)/colmlm crashlab --rounds 500 --seed 1
