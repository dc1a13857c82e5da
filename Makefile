# Everything a fresh machine needs is Python 3.11+ and make. Every target prepares what it uses; nothing is installed twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := avcg tests benchmarks docs/hooks
# One file of pins for every install, build environments included, so that no package can move another.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup hooks demo test test-all test-oldest format lint types docs dist bench results clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "avcg needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch goes first and alone: with it in place, no later step can prefer another build of it.
$(VENV)/core.stamp: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet torch -c constraints.txt
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/core.stamp
	$(BIN)/pip install --quiet --editable '.[dev]'
	$(BIN)/pip check
	@touch $@

setup: $(VENV)/dev.stamp ## prepare .venv with the package and the development tools

hooks: setup ## check format, lint and types at every commit
	$(BIN)/pre-commit install

$(VENV)/plots.stamp: $(VENV)/core.stamp
	$(BIN)/pip install --quiet --editable '.[plots]'
	@touch $@

demo: $(VENV)/plots.stamp ## see avcg at work on embedded data
	$(BIN)/avcg demo

# One thread a worker: two workers with two threads each would fight over two cores.
test test-all: export OMP_NUM_THREADS := 1

test: setup lint types ## format check, lint, types, the fast tests and the smallest benchmark
	$(BIN)/pytest -q -n 2 -m 'not slow'
	rm -rf $(VENV)/smoke
	$(BIN)/avcg bench run benchmarks/smoke.toml --results $(VENV)/smoke
	$(BIN)/avcg bench table benchmarks/smoke.toml --results $(VENV)/smoke --metric Val --metric CMV --metric L1

test-all: setup lint types ## the fast and the slow tests, with branch coverage
	$(BIN)/pytest -q -n 2 --cov --cov-report=term:skip-covered

# In an environment of its own, so that the everyday one keeps its pins. Every requirement of the package and of its extras is
# at its lower bound; the tools of the tests are as new as these allow.
test-oldest: export PIP_CONSTRAINT := $(CURDIR)/constraints-oldest.txt
test-oldest: export OMP_NUM_THREADS := 1
test-oldest: ## the fast tests on the oldest versions that are allowed
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/pip install --quiet torch
	$(VENV)-oldest/bin/pip install --quiet --editable '.[data,plots,onnx,serve,batch,ray,spark,dask,trees]' \
	  httpx hypothesis playwright polars pytest pytest-xdist 'schemathesis>=4' skl2onnx
	$(VENV)-oldest/bin/pip check
	$(VENV)-oldest/bin/pytest -q -n 2 -m 'not slow' -p no:cacheprovider

lint: setup
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)

types: setup
	$(BIN)/mypy

format: setup ## rewrite the sources in the one format
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

docs: setup ## build the documentation into site/, refusing whatever does not resolve
	$(BIN)/zensical build --strict --clean
	for figure in benchmarks/results/*/*.png; do mkdir -p site/$$(dirname $$figure) && cp $$figure site/$$figure; done

# What is published is tried in an environment that has never seen the sources.
dist: setup ## build wheel and sdist, install each in a new environment, and try it
	rm -rf dist $(VENV)/dist
	$(BIN)/python -m build --outdir dist
	for made in dist/*.whl dist/*.tar.gz; do \
	  rm -rf $(VENV)/dist && $(PYTHON) -m venv $(VENV)/dist \
	  && $(VENV)/dist/bin/pip install --quiet torch && $(VENV)/dist/bin/pip install --quiet "$$made[plots,serve,onnx]" \
	  && (cd $(VENV)/dist && bin/python ../../tests/smoke.py) || exit 1; \
	done

bench: setup ## the speed figures quoted in the documentation (half an hour; nothing else should run beside it)
	for what in space hypotheses retraining train alone searches; do $(BIN)/python benchmarks/speed.py $$what || exit 1; done
	$(BIN)/python benchmarks/speed.py fit --threads 1 --artifact $(VENV)/adult
	for what in generate certify scale stream onnx serve; do \
	  $(BIN)/python benchmarks/speed.py $$what --artifact $(VENV)/adult || exit 1; \
	done

results: setup ## run every protocol (hours; goes on where it was) and write the results pages
	for name in paper recourse frontier sweep ablation xgboost lightgbm random_forest; do $(BIN)/avcg bench run benchmarks/$$name.toml || exit 1; done
	$(BIN)/avcg bench page docs/results.md
	$(BIN)/python benchmarks/promise.py run && $(BIN)/python benchmarks/promise.py given
	$(BIN)/python benchmarks/promise_page.py docs/results/promise.md --figure docs/images/promise.png

clean: ## remove what make made
	rm -rf $(VENV) $(VENV)-oldest .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache .coverage dist site
	find avcg tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
