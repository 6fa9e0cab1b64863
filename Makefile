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
# run.lock is what running needs, dev.lock everything; each stamp says that its lock is installed.
RUN := $(VENV)/.installed-run
DEV := $(VENV)/.installed-dev
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# Checks the scripts of the page; it is in no lock.
TYPESCRIPT := typescript@7.0.2
# The resolver is needed only to write the locks, so it is not in them. `make lock UPGRADE=` only adds what is missing.
RESOLVER := uv==0.13.7
UPGRADE ?= --upgrade
COMPILE := $(BIN)/uv pip compile --quiet $(UPGRADE) --universal --generate-hashes --no-emit-index-url \
	--custom-compile-command "make lock" --all-extras

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run chat test check jscheck bench nightly compat format lock vendor pictures

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

run: $(RUN) ## run the server (web page and API) with the demo model
	@$(BIN)/indelible serve $(ARGS)

chat: $(RUN) ## chat in the terminal with the demo model
	@$(BIN)/indelible chat $(ARGS)

test: $(DEV) ## run all tests
	$(BIN)/pytest -q -n auto --timeout 300 --durations 10 $(if $(STRICT),,--second-chance) $(ARGS)

check: $(DEV) ## check lint, formatting, types and layers
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

jscheck: ## check the types of the page's scripts and test its core (needs Node and npm)
	node --test tests/web/
	@npm install --silent --no-save --no-package-lock --prefix $(VENV)/js $(TYPESCRIPT)
	@$(VENV)/js/node_modules/.bin/tsc --project tests/web/tsconfig.json >$(VENV)/js/errors || true
	@! grep 'error TS' $(VENV)/js/errors | grep -v '^src/indelible/server/web/vendor/'

vendor: ## fetch the libraries of the page from npm (needs npm)
	@$(PYTHON) scripts/vendor_web.py

pictures: $(DEV) ## make the pictures of the page in docs/images/ (needs chromium)
	@$(BIN)/python -m scripts.pictures

bench: $(DEV) ## run the benchmarks
	@$(BIN)/python -m bench $(ARGS)

nightly: $(DEV) ## run all tests with many more examples in the property tests
	INDELIBLE_EXAMPLES=$(EXAMPLES) $(BIN)/pytest -q -n auto \
		--hypothesis-profile nightly --timeout 14400 $(ARGS)

compat: $(DEV) compat/.installed ## run other people's clients (OpenAI SDKs, agents, AI SDK) against a real server
	$(BIN)/pytest -q -p no:cacheprovider --timeout 900 $(ARGS) compat

compat/.installed: compat/requirements.txt compat/package.json
	@echo "Installing the clients into compat/.venv and compat/node_modules"
	@$(PYTHON) -m venv compat/.venv
	@compat/.venv/bin/python -m pip --disable-pip-version-check -qq install -r compat/requirements.txt
	@cd compat && npm install --no-package-lock --silent
	@touch $@

format: $(DEV) ## format the code and apply safe lint fixes
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format

lock: $(BIN)/python ## update dev.lock and run.lock to the newest allowed dependencies
	@$(PIP) install $(RESOLVER)
	$(COMPILE) --group dev --output-file dev.lock pyproject.toml
	$(COMPILE) --group build --constraint dev.lock --output-file run.lock pyproject.toml
	@if grep -n '://' dev.lock run.lock; then echo "A lock must not contain a URL."; exit 1; fi

# $(call install,LOCK): install a lock into the environment, and say so: it takes a while. Modules are compiled when they
# are first imported, which most of them never are.
define install
	@echo "Installing the $$(grep -c '^[a-z].*==' $(1)) packages of $(1) into $(VENV) …"
	@$(PIP) install --no-compile --require-hashes -r $(1)
endef

$(RUN): run.lock pyproject.toml | $(BIN)/python
	$(call install,run.lock)
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m pip --disable-pip-version-check check >$@ || { cat $@; exit 1; }

$(DEV): dev.lock $(RUN)
	$(call install,dev.lock)
	@$(BIN)/python -m pip --disable-pip-version-check check >$@ || { cat $@; exit 1; }

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Indelible needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Choose another one with PYTHON=…" if sys.version_info < (3, 11) else 0)'
	@echo "Creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
