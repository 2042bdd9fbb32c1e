# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Small networks: one thread per process and several processes beat several threads.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test cluster chaos check format bench docs clean
help:            ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

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
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
