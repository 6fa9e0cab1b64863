# Every verb first sets up what it needs, in .venv: a machine has to have only make and
# Python 3.11 or newer. Another Python: make test PYTHON=python3.13 (on a clone without .venv).
# More words for the command behind a verb: make test ARGS="-k silence -x".

PYTHON ?= python3
ARGS ?=
# How many examples a property test tries in `make nightly`.
EXAMPLES ?= 50000

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# The resolver is needed only to write the lock, so it is not in the lock.
RESOLVER := uv==0.13.7

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run chat test check bench nightly format lock

help: ## list the verbs
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

run: $(INSTALLED) ## serve the page and the API, with the built-in demo model
	@$(BIN)/indelible serve $(ARGS)

chat: $(INSTALLED) ## chat in the terminal with the built-in demo model
	@$(BIN)/indelible chat $(ARGS)

test: $(INSTALLED) ## run all tests
	$(BIN)/pytest -q -n auto --dist loadgroup --timeout 300 $(ARGS)

check: $(INSTALLED) ## lint, formatting, types, layers
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(INSTALLED) ## measure what things cost, as ratios in one run
	@$(BIN)/python -m bench $(ARGS)

nightly: $(INSTALLED) ## run all tests with many more examples in the property tests
	INDELIBLE_EXAMPLES=$(EXAMPLES) $(BIN)/pytest -q -n auto --dist loadgroup \
		--hypothesis-profile nightly --timeout 14400 $(ARGS)

format: $(INSTALLED) ## format the code and apply the safe fixes of the linter
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format

lock: $(BIN)/python ## resolve the newest allowed dependencies into requirements.lock
	@$(PIP) install $(RESOLVER)
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" --group dev --output-file requirements.lock pyproject.toml
	@if grep -n '://' requirements.lock; then echo "The lock names a host."; exit 1; fi

$(INSTALLED): requirements.lock pyproject.toml | $(BIN)/python
	@echo "Installing what requirements.lock names into $(VENV)"
	@$(PIP) install --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m pip --disable-pip-version-check check >$@ || { cat $@; exit 1; }

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Indelible needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another one with PYTHON=…" if sys.version_info < (3, 11) else 0)'
	@echo "Creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
