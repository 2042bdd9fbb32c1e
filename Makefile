# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
# Small networks: one thread per process and several processes beat several threads.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test test-lowest cluster chaos check coverage mutants fuzz format bench docs clean
help:            ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(BIN)/.installed-run: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(BIN)/.installed-dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(BIN)/.installed-run

$(BIN)/.installed-docs: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@ $(BIN)/.installed-run

demo: $(BIN)/.installed-run      ## Train five methods on real digits, print a table, write a report page
	$(BIN)/orthocl demo

test: $(BIN)/.installed-dev      ## Run all tests, doctests and examples
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not cluster"

test-lowest:     ## Run all tests with the lowest versions that pyproject.toml allows, in .venv-lowest (torch comes with its CUDA libraries)
	test -x .venv-lowest/$(notdir $(BIN))/python || $(PYTHON) -m venv .venv-lowest
	.venv-lowest/$(notdir $(BIN))/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=.venv-lowest .venv-lowest/$(notdir $(BIN))/uv pip install --quiet --resolution lowest-direct -e '.[test]'
	.venv-lowest/$(notdir $(BIN))/python -m pytest -n 2 --dist worksteal -m "not cluster"

coverage: $(BIN)/.installed-dev  ## Run all tests, print the share of executed lines, fail below 95 %; .coverage knows which test runs which line
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not cluster" --cov=orthocl --cov-context=test --cov-report=term:skip-covered --cov-fail-under=95 --junitxml=.test-times.xml -o junit_family=xunit1

mutants: $(BIN)/.installed-dev   ## Change 200 random lines of the mathematics, one at a time: which changes does no test notice? (after `make coverage`)
	$(BIN)/python scripts/mutate.py 200

fuzz: $(BIN)/.installed-dev      ## Give every parser coverage-guided nonsense for 30 seconds (atheris)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check atheris
	$(BIN)/python scripts/fuzz.py

cluster: $(BIN)/.installed-dev   ## Install Ray and Slurm where possible and test on real clusters on this machine
	bash scripts/install_cluster_tests.sh $(BIN)/python
	$(BIN)/python -m pytest -m cluster tests/cluster

chaos: $(BIN)/.installed-dev     ## Kill, stop, starve and rob runs 200 times: every survivor must end in the identical result
	$(BIN)/python tests/chaos/storm.py 200

check: $(BIN)/.installed-dev     ## Format, lint, types, layers, then the tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) test

format: $(BIN)/.installed-dev    ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(BIN)/.installed-dev     ## Measure speed and memory, as ratios within one run
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

docs: $(BIN)/.installed-docs     ## Build the documentation site into site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:           ## Remove the environment and caches
	rm -rf $(VENV) .venv-lowest .coverage .test-times.xml mutants*.jsonl .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
