# The commands a person runs are the commands CI runs. `make demo` and `make test` set up everything they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_DIR ?= .demo
DEMO_FLAGS ?=
# Half of what the tests take is waiting for processes and time limits: half as many again as there are cores.
PROCESSES ?= $(shell echo $$(( ($$(getconf _NPROCESSORS_ONLN) * 3 + 1) / 2 )))
OLDEST ?= $(BIN)/python

.PHONY: screenshots demo demo-train test soak unit lowest lint docs docs-site bench clean help

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort

demo: $(VENV)/.installed  ## the main job, real: from an empty folder to a scored run
	@$(BIN)/osmosis quickstart --yes --dir $(DEMO_DIR) $(DEMO_FLAGS)

demo-train: $(VENV)/.installed  ## train a tiny model on this machine and show that it is better: a few minutes on two cores
	@$(BIN)/python examples/train-tiny/demo.py --dir .demo-train $(DEMO_FLAGS)

test: $(VENV)/.dev  ## every test
	@$(BIN)/python -m pytest tests -n $(PROCESSES) --dist worksteal $(ARGS)

soak: $(VENV)/.dev  ## the tests that take long, and that no other target runs; they say what they measure
	@$(BIN)/python -m pytest tests -m soak -s $(ARGS)

unit: $(VENV)/.dev  ## the fast part
	@$(BIN)/python -m pytest tests/unit -n 3 --dist worksteal $(ARGS)

lowest: $(VENV)/bin/uv  ## unit tests and rollout servers on the lowest versions that the bounds allow, with the Python OLDEST
	@$(BIN)/uv venv --quiet --clear --python $(OLDEST) .venv-lowest
	@$(BIN)/uv pip install --quiet --resolution lowest-direct --python .venv-lowest/bin/python -e '.[dev]'
	@.venv-lowest/bin/python -m pytest tests/unit tests/serve -n 3 --dist worksteal

lint: $(VENV)/.dev  ## style, types, direction of imports
	@$(BIN)/python hatch_build.py
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

docs: $(VENV)/.dev  ## write the generated pages again
	@$(BIN)/python -m osmosis.serve.schemas docs/protocol
	@$(BIN)/python -m osmosis.workspace.reference docs/config.md
	@$(BIN)/python -m osmosis.cli.reference docs/cli.md

docs-site: $(VENV)/.dev  ## build the documentation; the platform shows it under /docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --clean
	@echo "src/osmosis/_site/index.html"

screenshots: $(VENV)/.dev  ## pictures of every page of the viewer, wide and on a phone, light and dark: build/screenshots
	@$(BIN)/python benchmarks/screenshots.py

bench: $(VENV)/.dev  ## measure, paired with bare loops in the same run
	@for one in startup git_facts eval_throughput server_throughput platform_load; do echo "== $$one"; $(BIN)/python benchmarks/$$one.py || exit 1; done

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("osmosis needs Python 3.10 or newer; this is %d.%d: make PYTHON=python3.12 ..." % sys.version_info[:2] if sys.version_info < (3, 10) else 0)'
	@$(PYTHON) -m venv $(VENV)

# uv installs in seconds; pip does where uv cannot reach the index that pip is configured for.
$(VENV)/bin/uv: $(VENV)/bin/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8,<0.14'

$(VENV)/.installed: $(VENV)/bin/uv pyproject.toml
	@echo "installing osmosis into $(VENV)"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -e . || $(BIN)/python -m pip install --quiet -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[dev]' || $(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

clean:  ## remove what make made; the demo's platform is stopped first
	@[ ! -d $(DEMO_DIR) ] || OSMOSIS_DATA_DIR=$(DEMO_DIR)/platform $(BIN)/osmosis platform stop || true
	@rm -rf $(VENV) $(DEMO_DIR) .demo-train src/osmosis/_site .mypy_cache .ruff_cache .pytest_cache
