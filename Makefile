# The commands a person runs are the commands CI runs. `make demo` and `make test` set up everything they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_DIR ?= .demo
DEMO_FLAGS ?=
# Half of what the tests take is waiting for processes and time limits: half as many again as there are cores.
PROCESSES ?= $(shell echo $$(( ($$(getconf _NPROCESSORS_ONLN) * 3 + 1) / 2 )))
OLDEST ?= $(BIN)/python

EXTRAS := mcp oidc openai-agents otlp postgres s3 strands tensorboard
comma := ,
empty :=
space := $(empty) $(empty)
# Where it is set, as in many images, each process of an environment that a test makes compiles torch and all else again.
unexport PYTHONDONTWRITEBYTECODE
PYTEST = $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal

.PHONY: help demo demo-train demo-smollm2 check test test-all slow soak unit lint lowest docs docs-site wheel screenshots bench bridges audit lock release clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort

demo: $(VENV)/.installed  ## the main job, real: from an empty folder to a scored run
	@$(BIN)/osmosis quickstart --yes --dir $(DEMO_DIR) $(DEMO_FLAGS)

demo-train: $(VENV)/.installed  ## train a tiny model on this machine and show that it is better: a few minutes on two cores
	@$(BIN)/python examples/train-tiny/demo.py --dir .demo-train $(DEMO_FLAGS)

demo-smollm2: $(VENV)/.installed  ## train a pretrained model of 135 million parameters on this machine, and show that it is better
	@$(BIN)/python examples/train-smollm2/demo.py --dir .demo-smollm2 $(DEMO_FLAGS)

check: lint  ## what to run before a commit: style, types, imports, unit tests, rollout servers
	@$(PYTEST) tests/unit tests/serve -m 'not slow and not soak' $(ARGS)

test: $(VENV)/.dev  ## the tests that a person needs
	@$(PYTEST) tests -m 'not soak and not slow' $(ARGS)

slow: $(VENV)/.dev  ## the tests that take long: training, kills, environments, published clients
	@$(PYTEST) tests -m 'slow and not soak' $(ARGS)

test-all: lint test slow lowest  ## everything but `make soak`; CI runs it on both databases, with as many slow tests as its time allows

soak: $(VENV)/.dev  ## the tests that take very long, and that no other target runs; they say what they measure
	@$(BIN)/python -m pytest tests -m soak -s $(ARGS)

unit: $(VENV)/.dev  ## the fast part
	@$(PYTEST) tests/unit -m 'not slow and not soak' $(ARGS)

lowest: $(VENV)/bin/uv  ## unit tests and rollout servers on the lowest versions that the bounds allow, with the Python OLDEST
	@$(BIN)/uv venv --quiet --clear --python $(OLDEST) .venv-lowest
	@$(BIN)/uv pip install --quiet --resolution lowest-direct --python .venv-lowest/bin/python -e '.[$(subst $(space),$(comma),$(EXTRAS))]' --group dev
	@.venv-lowest/bin/python -m pytest tests/unit tests/serve -m 'not slow and not soak' -n $(PROCESSES) --dist worksteal $(ARGS)

lint: $(VENV)/.dev  ## style, types, direction of imports, names
	@$(BIN)/python hatch_build.py
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python .ci/ratchet.py

docs: $(VENV)/.dev  ## write the generated pages again
	@PYTHONPATH=tests $(BIN)/python -m support.protocol_documents docs/protocol
	@PYTHONPATH=tests $(BIN)/python -m support.config_reference docs/config.md
	@PYTHONPATH=tests $(BIN)/python -m support.command_reference docs/cli.md

HARNESSES := build/harnesses
HARNESS_BINS := $(CURDIR)/$(HARNESSES)/node_modules/.bin:$(CURDIR)/$(HARNESSES)/py/bin:$(CURDIR)/$(HARNESSES)/vibe/bin
# Programs: node is a newer one than a machine may have. Adapters: programs that speak the Agent Client Protocol for one.
HARNESS_PROGRAMS := node@22 @anthropic-ai/claude-code @openai/codex opencode-ai @google/gemini-cli @qwen-code/qwen-code \
	@earendil-works/pi-coding-agent@1.5.2 @agentclientprotocol/claude-agent-acp @agentclientprotocol/codex-acp pi-acp
# OpenHands and Vibe need 3.12; pyenv's is used where its shims are in the way.
HARNESS_BASE ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python) 3.12)
harnesses: $(VENV)/.dev  ## install agent programs and frameworks, and try each unmodified against a scripted model
	@for program in $(HARNESS_PROGRAMS); do \
		PATH="$(HARNESS_BINS):$$PATH" npm install --silent --prefix $(HARNESSES) $$program || echo "not installed: $$program"; done
	@for program in py vibe; do $(BIN)/uv venv --quiet --allow-existing --python $(HARNESS_BASE) $(HARNESSES)/$$program; done
	@$(BIN)/uv pip install --quiet --python $(HARNESSES)/py/bin/python "pydantic-ai-slim[openai,anthropic]" langgraph \
		"smolagents[openai]" langchain-openai langchain-anthropic openai-agents strands-agents mini-swe-agent \
		"openhands-sdk>=1.58" "openhands-tools>=1.58"
	@$(BIN)/uv pip install --quiet --python $(HARNESSES)/vibe/bin/python mistral-vibe
	@PATH="$(HARNESS_BINS):$$PATH" HARNESS_PYTHON=$(CURDIR)/$(HARNESSES)/py/bin/python \
		$(BIN)/python -m pytest tests/flow/test_harnesses.py -m "soak or not soak" -rs $(ARGS)

docs-site: $(VENV)/.dev  ## build the documentation; the platform shows it under /docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --clean
	@echo "src/osmosis/_site/index.html"

wheel: docs-site  ## dist/*.whl, with the documentation: what `uv tool install` and `pip install` take
	@$(BIN)/uv build --quiet --wheel
	@ls dist/*.whl

screenshots: $(VENV)/.dev  ## pictures of every page of the viewer, wide and on a phone, light and dark: build/screenshots
	@$(BIN)/python benchmarks/screenshots.py

bench: $(VENV)/.dev  ## measure, paired with bare loops in the same run
	@for one in startup git_facts eval_throughput server_throughput platform_load; do echo "== $$one"; $(BIN)/python benchmarks/$$one.py || exit 1; done

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("osmosis needs Python 3.10 or newer; this is %d.%d: make PYTHON=python3.12 ..." % sys.version_info[:2] if sys.version_info < (3, 10) else 0)'
	@$(PYTHON) -m venv $(VENV)

bridges: $(VENV)/.dev  ## make the fixtures of docs/bridges.md again from the real packages
	@$(BIN)/python tests/fixtures/bridges/make.py

lock: $(VENV)/bin/uv  ## write uv.lock again after a dependency changed
	@$(BIN)/uv lock

audit: $(VENV)/bin/uv  ## known advisories of every package in uv.lock; needs the package index of PyPI itself
	@mkdir -p build
	@$(BIN)/uv export --quiet --frozen --no-emit-project --all-extras --output-file build/requirements.txt
	@$(BIN)/uv tool run --quiet pip-audit --strict --disable-pip --require-hashes -r build/requirements.txt

release: $(VENV)/.dev  ## make release VERSION=1.2.0: version, CHANGELOG, tag and wheel; pushes nothing
	@$(BIN)/python .ci/release.py $(VERSION)

# uv installs what uv.lock names, in seconds; pip does where uv cannot reach the index that pip is configured for.
$(VENV)/bin/uv: $(VENV)/bin/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8,<0.14'

$(VENV)/.installed: $(VENV)/bin/uv pyproject.toml uv.lock
	@echo "installing osmosis into $(VENV)"
	@$(BIN)/uv sync --quiet --locked --inexact --no-default-groups || $(BIN)/python -m pip install --quiet -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	@$(BIN)/uv sync --quiet --locked --inexact $(addprefix --extra ,$(EXTRAS)) || { \
	  $(BIN)/python -m pip install --quiet 'pip>=25.1' && \
	  $(BIN)/python -m pip install --quiet -e '.[$(subst $(space),$(comma),$(EXTRAS))]' --group dev; }
	@touch $@

clean:  ## remove what make made; the platforms of the demos are stopped first
	@for demo in $(DEMO_DIR) .demo-train .demo-smollm2; do \
	  [ ! -d $$demo ] || OSMOSIS_DATA_DIR=$$demo/platform $(BIN)/osmosis platform stop || true; done
	@rm -rf $(VENV) $(DEMO_DIR) .demo-train .demo-smollm2 src/osmosis/_site .mypy_cache .ruff_cache .pytest_cache
