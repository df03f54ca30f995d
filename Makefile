# The two commands of the README, and the three a contributor needs besides. Every target sets up what it needs.
#   make demo    train a real model on two workers through the server
#   make test    everything: lint, types, import contracts, all tests
#   make check   the same without the tests that start real servers (under five minutes)
#   make soak    the long chaos
#   make format  put the code into shape
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test check lint soak format lock clean

help:
	@sed -n '2,7p' Makefile | sed 's/^#   /  /'

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Shoal needs Python 3.11 or newer, this is %d.%d: run make PYTHON=/path/to/python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Everything is installed at the versions of requirements.lock.
$(VENV)/.demo: $(VENV)/.made pyproject.toml requirements.lock
	$(PIP) install -c requirements.lock -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml requirements.lock
	$(PIP) install -c requirements.lock -e '.[dev]'
	@touch $@ $(VENV)/.demo

# The system's packages that tests use, where we may install them; elsewhere their tests say what to type.
SYSTEM_PACKAGES := libfaketime openmpi-bin bubblewrap
$(VENV)/.system: $(VENV)/.made Makefile
	@if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && ! dpkg -s $(SYSTEM_PACKAGES) > /dev/null 2>&1; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends $(SYSTEM_PACKAGES) > /dev/null; fi
	@touch $@

demo: $(VENV)/.demo
	@$(BIN)/python examples/demo.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not real and not chaos and not soak"

test: lint $(VENV)/.system
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not soak"

soak: $(VENV)/.dev $(VENV)/.system
	$(BIN)/python -m pytest -q -m soak

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The versions of a fresh environment, written down.
lock: $(VENV)/.dev
	$(BIN)/python -m pip freeze --exclude-editable > requirements.lock

clean:
	rm -rf $(VENV)
