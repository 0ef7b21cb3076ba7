# Everything a person or a machine does with this project: `make` lists it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := $(wildcard topicsd shared router spark loadtest)
# Named after the packages: an installation does not see a package that was added later.
RUNTIME := $(VENV)/.runtime-$(subst $() ,-,$(PACKAGES))
DEVELOPMENT := $(VENV)/.development-$(subst $() ,-,$(PACKAGES))
SERVERS := .stack/.python
TYPED := $(wildcard topicsd shared router spark tests/harness tests/stack)
FORMATTED := $(PACKAGES) tests pyspark_topicsd.py

.DEFAULT_GOAL := help
.PHONY: help install install-dev stack stack-go run test test-deep bench docs check format clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

install: $(RUNTIME) ## make .venv with what running the server needs (requirements.lock), and the project in it

install-dev: $(DEVELOPMENT) ## the same with what tests, checks and Spark need (requirements-dev.lock, 1.1 GB)

$(RUNTIME): requirements.lock pyproject.toml
	$(call install_locked,requirements.lock)
	@touch $@

$(DEVELOPMENT): requirements-dev.lock requirements.lock pyproject.toml
	$(call install_locked,requirements-dev.lock)
	@# The development lock holds all of the other one, at the same versions.
	@touch $(RUNTIME) $@

define install_locked
	@command -v $(PYTHON) >/dev/null || { \
	  echo "topicsd needs Python 3.11 or newer, and there is no '$(PYTHON)'; name one: make PYTHON=python3.11 install" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "topicsd needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1); name another: make PYTHON=python3.11 install" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r $(1)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@# Compile now: a service that cannot write here would compile every module at each start of a worker.
	$(BIN)/python -m compileall -q $(PACKAGES)
endef

stack: $(SERVERS) ## install the servers that the tests of stores and catalogs need, in .stack/ (requirements-stack.lock)

$(SERVERS): requirements-stack.lock
	$(PYTHON) -m venv .stack/python
	.stack/python/bin/python -m pip install --quiet --require-hashes -r requirements-stack.lock
	@touch $@

stack-go: ## build etcd and Oxia into .stack/bin for the tests of catalogs, where there is Go (minutes)
	@command -v go >/dev/null || { echo "there is no Go: the tests of etcd and Oxia are skipped"; exit 0; }; \
	mkdir -p .stack/bin && cd tests/stack/go && \
	go build -o ../../../.stack/bin/etcd go.etcd.io/etcd/server/v3 && \
	go build -o ../../../.stack/bin/oxia github.com/oxia-db/oxia/cmd

run: $(RUNTIME) ## start the server at http://127.0.0.1:4000, with its data in ./topics-data
	@$(BIN)/topicsd serve

test: $(DEVELOPMENT) $(SERVERS) ## run the tests but for the long runs
	$(BIN)/python tests/run_in_two.py

test-deep: $(DEVELOPMENT) $(SERVERS) ## run the tests, the long runs too and at full length
	TOPICS_TEST_DEEP=1 $(BIN)/python -m pytest -m "" -o faulthandler_timeout=0

bench: $(DEVELOPMENT) ## measure the server beside its ceilings, save the result and draw it
	$(BIN)/python -m loadtest bench --save

docs: $(DEVELOPMENT) ## build the documentation as a site in site/, with search; a broken link is an error
	@# Not --quiet: warnings would not be counted, and a broken link would pass.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

check: $(DEVELOPMENT) ## format, lint, types and house rules
	$(BIN)/ruff format --check $(FORMATTED)
	$(BIN)/ruff check $(FORMATTED)
	$(BIN)/mypy $(TYPED)
	$(BIN)/python -m pytest -q tests/unit/test_house_rules.py

format: $(DEVELOPMENT) ## rewrite the code as `make check` wants it
	$(BIN)/ruff check --fix $(FORMATTED)
	$(BIN)/ruff format $(FORMATTED)

clean: ## remove .venv, caches and what was built; data is left alone
	rm -rf $(VENV) .stack .mypy_cache .pytest_cache .ruff_cache build site *.egg-info
	find $(FORMATTED) -name __pycache__ -type d -prune -exec rm -rf {} +
