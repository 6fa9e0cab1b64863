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
# What the checks and tests need from npm: other people's clients and TypeScript, pinned with hashes. Node and npm are in dev.lock.
NPM := tests/npm
JS := $(VENV)/js
NPM_FLAGS := --ignore-scripts --no-audit --no-fund --loglevel=error
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

test: $(DEV) $(JS)/.installed ## run all tests
	$(BIN)/pytest -q -n auto --timeout 300 --durations 10 $(if $(STRICT),,--second-chance) $(ARGS)

check: $(DEV) jscheck ## check lint, formatting, types (of the page's scripts, too) and layers
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

jscheck: $(JS)/.installed ## check the types of the page's scripts (part of make check)
	$(BIN)/node $(JS)/node_modules/.bin/tsc --project tests/web/tsconfig.json >$(JS)/errors || grep -q 'error TS' $(JS)/errors
	@! grep 'error TS' $(JS)/errors | grep -v '^src/indelible/server/web/vendor/'

vendor: $(DEV) ## fetch the libraries of the page from npm
	@$(BIN)/python -m scripts.vendor_web

pictures: $(DEV) ## make the pictures of the page in docs/images/ (needs chromium)
	@$(BIN)/python -m scripts.pictures

bench: $(DEV) ## run the benchmarks
	@$(BIN)/python -m bench $(ARGS)

nightly: $(DEV) ## run all tests with many more examples in the property tests
	INDELIBLE_EXAMPLES=$(EXAMPLES) $(BIN)/pytest -q -n auto \
		--hypothesis-profile nightly --timeout 14400 $(ARGS)

compat: $(DEV) $(JS)/.installed $(VENV)/compat/.installed $(VENV)/compat/js/.installed ## run other people's clients (OpenAI SDKs, agents, AI SDK) against a real server
	$(BIN)/pytest -q -p no:cacheprovider --timeout 900 --durations 10 $(ARGS) compat

# Other people's Python clients, which may need other versions than ours.
$(VENV)/compat/.installed: compat/requirements.txt | $(BIN)/python
	@echo "Installing the Python clients of $< into $(VENV)/compat …"
	@$(BIN)/python -m venv $(VENV)/compat
	@$(VENV)/compat/bin/python -m pip --disable-pip-version-check -qq install --no-compile -r $<
	@touch $@

# Those from npm, Codex among them, which brings its own binary.
$(VENV)/compat/js/.installed: compat/npm/package.json compat/npm/package-lock.json $(VENV)/compat/.installed | $(DEV)
	$(call install_npm,compat/npm,$(VENV)/compat/js)

format: $(DEV) ## format the code and apply safe lint fixes
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format

define lock_npm
	$(BIN)/npm install --package-lock-only --omit-lockfile-registry-resolved $(NPM_FLAGS) --prefix $(1)
	@$(BIN)/python -c 'import json, pathlib as p; f = p.Path("$(1)/package-lock.json"); j = json.loads(f.read_text()); [x.pop("funding", 0) for x in j["packages"].values()]; f.write_text(json.dumps(j, indent=2) + "\n")'
endef

lock: $(BIN)/python ## update dev.lock and run.lock to the newest allowed dependencies
	@$(PIP) install $(RESOLVER)
	$(COMPILE) --group dev --output-file dev.lock pyproject.toml
	$(COMPILE) --group build --constraint dev.lock --output-file run.lock pyproject.toml
	$(call lock_npm,$(NPM))
	$(call lock_npm,compat/npm)
	@if grep -n '://' dev.lock run.lock $(NPM)/package-lock.json compat/npm/package-lock.json; then echo "A lock must not contain a URL."; exit 1; fi

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

# $(call install_npm,FOLDER,TARGET): install the locked packages of a folder. npm compares what it fetches with the hashes
# of its lock. It is started a second time because registries have bad moments.
define install_npm
	@echo "Installing the npm packages of $(1)/package-lock.json into $(2) …"
	@mkdir -p $(2) && rm -f $(2)/.installed
	@cp $(1)/package.json $(1)/package-lock.json $(2)
	@$(BIN)/npm ci $(NPM_FLAGS) --prefix $(2) >$(2)/npm.log 2>&1 || $(BIN)/npm ci $(NPM_FLAGS) --prefix $(2) || \
		{ echo "npm could not install the packages (above). Is its registry reachable? Another one: npm config set registry …"; exit 1; }
	@touch $(2)/.installed
endef

$(JS)/.installed: $(NPM)/package.json $(NPM)/package-lock.json | $(DEV)
	$(call install_npm,$(NPM),$(JS))

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Indelible needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Choose another one with PYTHON=…" if sys.version_info < (3, 11) else 0)'
	@echo "Creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
