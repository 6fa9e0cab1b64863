# Every target first installs what it needs into .venv: a machine needs only make and Python 3.11
# or newer. To use another Python: make test PYTHON=python3.13 (in a clone without .venv).
# To pass arguments to the command of a target: make test ARGS="-k silence -x".

PYTHON ?= python3
ARGS ?=
# A few failed tests are run once more, alone (docs/decisions/0017-second-chance.md). make test STRICT=1 does without.
STRICT ?=
# Number of examples per property test in `make nightly`.
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

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

run: $(INSTALLED) ## run the server (web page and API) with the demo model
	@$(BIN)/indelible serve $(ARGS)

chat: $(INSTALLED) ## chat in the terminal with the demo model
	@$(BIN)/indelible chat $(ARGS)

test: $(INSTALLED) ## run all tests
	$(BIN)/pytest -q -n auto --timeout 300 --durations 10 $(if $(STRICT),,--second-chance) $(ARGS)

check: $(INSTALLED) ## check lint, formatting, types and layers
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(INSTALLED) ## run the benchmarks
	@$(BIN)/python -m bench $(ARGS)

nightly: $(INSTALLED) ## run all tests with many more examples in the property tests
	INDELIBLE_EXAMPLES=$(EXAMPLES) $(BIN)/pytest -q -n auto \
		--hypothesis-profile nightly --timeout 14400 $(ARGS)

format: $(INSTALLED) ## format the code and apply safe lint fixes
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format

lock: $(BIN)/python ## update requirements.lock to the newest allowed dependencies
	@$(PIP) install $(RESOLVER)
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" --group dev --output-file requirements.lock pyproject.toml
	@if grep -n '://' requirements.lock; then echo "requirements.lock must not contain a URL."; exit 1; fi

$(INSTALLED): requirements.lock pyproject.toml | $(BIN)/python
	@echo "Installing requirements.lock into $(VENV)"
	@$(PIP) install --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m pip --disable-pip-version-check check >$@ || { cat $@; exit 1; }

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Indelible needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Choose another one with PYTHON=…" if sys.version_info < (3, 11) else 0)'
	@echo "Creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
