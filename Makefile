# Everything a person or a machine does with this project: `make` lists it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := $(wildcard topicsd shared router spark loadtest)
# Named after the packages: an installation does not see one that came after it.
STAMP := $(VENV)/.installed-$(subst $() ,-,$(PACKAGES))
TYPED := $(wildcard topicsd shared router spark tests/harness)
FORMATTED := $(PACKAGES) tests pyspark_topicsd.py

.DEFAULT_GOAL := help
.PHONY: help install run test test-deep bench check format clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

install: $(STAMP) ## make .venv with exactly what requirements.lock names, and the project in it

$(STAMP): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	  echo "topicsd needs Python 3.11 or newer, and there is no '$(PYTHON)'; name one: make PYTHON=python3.11 install" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "topicsd needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1); name another: make PYTHON=python3.11 install" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@# A service that may not write here would compile everything at each start of a worker.
	$(BIN)/python -m compileall -q $(PACKAGES)
	@touch $@

run: $(STAMP) ## start the server at http://127.0.0.1:4000, with its data in ./topics-data
	@$(BIN)/topicsd serve

test: $(STAMP) ## run the tests but for the long runs
	$(BIN)/python -m pytest

test-deep: $(STAMP) ## run the tests, the long runs too and at full length
	TOPICS_TEST_DEEP=1 $(BIN)/python -m pytest -m ""

bench: $(STAMP) ## measure the server beside its ceilings, save the result and draw it
	$(BIN)/python -m loadtest bench --save

check: $(STAMP) ## format, lint, types and house rules
	$(BIN)/ruff format --check $(FORMATTED)
	$(BIN)/ruff check $(FORMATTED)
	$(BIN)/mypy $(TYPED)
	$(BIN)/python -m pytest -q tests/unit/test_house_rules.py

format: $(STAMP) ## rewrite the code as `make check` wants it
	$(BIN)/ruff check --fix $(FORMATTED)
	$(BIN)/ruff format $(FORMATTED)

clean: ## remove .venv, caches and what was built; data is left alone
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build *.egg-info
	find $(FORMATTED) -name __pycache__ -type d -prune -exec rm -rf {} +
