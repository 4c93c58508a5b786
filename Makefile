# Everything runs in .venv, which the first target that needs it creates from uv.lock.
# The only requirement is Python 3.11 or newer: `make PYTHON=/path/to/python3.12 test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SYNCED := $(VENV)/.synced

export UV_PROJECT_ENVIRONMENT := $(CURDIR)/$(VENV)
export UV_PYTHON_DOWNLOADS := never
unexport VIRTUAL_ENV
# Without bytecode files every import of JAX takes more than twice as long.
unexport PYTHONDONTWRITEBYTECODE

# Compiled programs are kept in the checkout, so only the first run waits for XLA.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.jax_cache
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0
export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES ?= -1

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-deep notebooks lint fmt bench bench-gpu fidelity settings docs tables serve check wheel clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(SYNCED) ## train a controller for a minute and compare it with every baseline
	rm -rf demo && mkdir demo
	$(BIN)/jaxserve train --task bursty_workload --steps 5_000_000 --out demo/ppo
	$(BIN)/jaxserve evaluate --task bursty_workload --weights demo/ppo --episodes 20 \
	  --plot demo/episode.png --markdown demo/results.md --json demo/results.json
	@cat scripts/after_demo.txt

# Many tests wait for servers: more workers than cores keep the cores busy.
test test-all test-deep: WORKERS ?= $(shell $(PYTHON) -c 'import os; print(os.cpu_count() + 2)')
test: $(SYNCED) ## run the fast tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-all: $(SYNCED) ## run the fast and the slow tests, as CI does
	$(BIN)/python -m pytest -m "not deep" -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=30

test-deep: $(SYNCED) ## run every test, properties on 200 examples (an hour of processor time, network)
	$(BIN)/python -m pytest -m "" --hypothesis-profile=deep -n $(WORKERS) --dist loadfile \
	  --no-loadscope-reorder --durations=30

notebooks: $(SYNCED) ## run the notebooks on their short budget
	$(BIN)/python -m pytest tests/notebooks -m "" -n logical

lint: $(SYNCED) ## check lock file, style, format and types
	$(BIN)/uv lock --check --quiet
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

fmt: $(SYNCED) ## format the code and apply the safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(SYNCED) ## measure speed against the peers, all in one run
	$(BIN)/python -m benchmarks --markdown docs/benchmarks.md
	$(BIN)/python scripts/fill_readme.py

bench-gpu: $(SYNCED) ## measure speed against batch size on a CUDA GPU
	$(BIN)/uv pip install --quiet "jax[cuda13]"
	$(BIN)/python -m benchmarks.gpu --markdown docs/benchmarks_gpu.md

fidelity: $(SYNCED) ## compare the simulators with measurements and with each other
	$(BIN)/jaxserve fidelity --markdown docs/fidelity_results.md
	$(BIN)/python scripts/fill_readme.py

settings: $(SYNCED) ## check the search for settings on servers with hidden constants
	$(BIN)/python -m benchmarks.best_settings --markdown docs/best_settings.md

docs: $(SYNCED) ## build the documentation in build/docs
	$(BIN)/python scripts/generate_docs.py
	$(BIN)/python -m sphinx -W --keep-going -q docs build/docs

tables: $(SYNCED) ## rebuild the latency tables in data/tables
	$(BIN)/jaxserve table build

serve: $(SYNCED) ## serve the environment at http://localhost:7860
	$(BIN)/python -m server.app --port 7860

check: $(SYNCED) ## everything a deployment of the server must pass
	$(BIN)/python scripts/pre_submission_check.py

wheel: $(SYNCED) ## build dist/*.whl and try it in an empty environment
	scripts/wheel_smoke.sh

clean: ## remove the environment, caches and build products
	rm -rf $(VENV) .jax_cache .hypothesis .pytest_cache .ruff_cache build dist demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(SYNCED): pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "jaxserve needs Python 3.11 or newer; name one with PYTHON=/path/to/python3" >&2; exit 1; }
	test -x $(BIN)/uv || { $(PYTHON) -m venv --clear $(VENV) && $(BIN)/python -m pip install --quiet uv; }
	$(BIN)/uv sync --frozen --extra dev
	@touch $@
