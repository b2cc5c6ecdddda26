# Every target installs what it needs into .venv first; that happens again only when what is needed changes.
VENV ?= .venv
EXTRAS ?= cpu,dev
WORKERS ?= 3
INPUTS := pyproject.toml deploy/development.lock model/released/requirements.txt scripts/install
STAMP := $(VENV)/installed-$(shell { echo $(EXTRAS); cat $(INPUTS); } | cksum | tr ' ' '-')
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install up demo format style types check test fast test-all test-portable slow docs site bench faults

help:
	@echo "make up      start the API and the console on http://127.0.0.1:8484"
	@echo "make demo    load the demo corpus, ask, delete the fact, ask again; one JSON object on stdout"
	@echo "make check   format, lint, types, layers, migrations, prose, size"
	@echo "make test    make check, and all tests but the slow ones"
	@echo "make test-all  what make test leaves out: slow tests, clients of others, and numbers as on an older processor"
	@echo "make docs    build the site into site/; make site serves it on http://127.0.0.1:8000 while you write"
	@echo "make format  put the code in order"
	@echo "make bench   measure the store at 100,000 facts; some minutes, on an idle machine"
	@echo "make faults    kill processes at 500 seeded instants and check that nothing was lost; some minutes"

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

check: style types

style: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports
	PATH=$(abspath $(BIN)):$$PATH scripts/check-migrations
	$(BIN)/python scripts/prose --check
	$(BIN)/python scripts/structure --budget

types: $(STAMP)
	$(BIN)/mypy

# The type checker takes one core for a minute, where nothing is cached, so the tests run beside it.
test: style
	$(MAKE) --no-print-directory --jobs=2 types fast

PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile

fast: $(STAMP)
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

docs: $(STAMP)
	$(BIN)/python -m mkdocs build --strict --quiet
	@echo "The site is in site/: open site/index.html."

site: $(STAMP)
	$(BIN)/python -m mkdocs serve

# Clients of others are installed at their current releases, each into an environment of its own.
test-all: test-portable docs slow

slow: $(STAMP)
	FOREIGN_CLIENTS=$(VENV)/clients $(PYTEST) -m slow $(PYTEST_ARGS)

# Numbers of a processor with AVX2 and no more: the bits of a product, and what is approximate, differ from processor to
# processor. Each library has a switch of its own; what a machine does not have anyhow is switched off without a word.
PORTABLE := ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 OPENBLAS_CORETYPE=Haswell MKL_ENABLE_INSTRUCTIONS=AVX2 \
	FAISS_OPT_LEVEL=avx2 NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR"
NUMBERS := tests/model/lm tests/model/text tests/model/decoding tests/model/evaluate/test_recall.py tests/kb/lookup/test_lookup.py \
	tests/kb/lookup/test_index.py tests/kb/keys/test_calibration.py tests/kb/keys/test_bulk.py tests/kb/lookup/test_history.py \
	tests/lab/evaluate/test_growth.py::test_made_up_keys_are_like_the_real_ones_and_the_same_however_they_are_drawn \
	tests/lab/bench/test_synthetic.py

test-portable: $(STAMP)
	$(PORTABLE) $(PYTEST) -m "not slow and not browser" $(NUMBERS)

bench: $(STAMP)
	$(BIN)/colmlm-lab bench store --facts 100000 --dim 576

faults: $(STAMP)
	$(BIN)/colmlm-lab crashlab --rounds 500 --seed 1
