# `make run` and `make test` need nothing but Python 3.11 or newer and pip: they set everything up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=
# Two processes take half of the tests each, in their order; the first to end takes over some of the other's.
PARALLEL ?= -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help install run test test-all lint format docs docs-images gallery clean

help: ## Say what there is to make.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

install: $(READY) ## Make .venv and install rayfl with everything for development.

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "rayfl needs Python 3.11 or newer; try: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,docs]'
	@touch $@

run: $(READY) ## Run the default federation; options in ARGS, as in: make run ARGS="--method FedCO2"
	$(BIN)/python -m rayfl.run --config examples/quickstart.yaml $(ARGS)

lint: $(READY) ## Check style and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: $(READY) ## Check style and types and build the documentation, then run the quick tests.
	$(MAKE) --no-print-directory --jobs 2 lint docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-all: ## The same with the slow tests: kills, several hosts, sweeps, every method on actors.
	@echo "All tests take about 20 minutes on two quiet cores, 10 more as root with several hosts; make test 5 to 10."
	$(MAKE) --no-print-directory test ARGS='-m "" $(or $(ARGS),--ignore tests/cluster)'
	$(if $(ARGS),,OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "" tests/cluster)

format: $(READY) ## Put the code into the project's format.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## Build the documentation as a site into site/; a warning is an error.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

docs-images: $(READY) ## Draw pictures of the documentation again; needs chromium.
	$(BIN)/rayfl data sheet docs/images/embedded_digits.png
	$(BIN)/rayfl data sheet docs/images/synthetic.png --data Synthetic --data.domains 3
	$(BIN)/python examples/fedco2/ntk.py --save docs/images/fedco2_ntk.png
	rm -rf build/page && $(BIN)/rayfl run --method FedRep --clients 20 --rounds 10 --data.partition Dirichlet \
	  --training.last_batch drop --output build/page
	chromium --headless --no-sandbox --hide-scrollbars --window-size=1100,1035 \
	  --screenshot=docs/images/report_page.png build/page/report.html

gallery: $(READY) ## Execute the examples of the gallery again, in ten minutes on two cores.
	$(BIN)/python -m docs.gallery

clean: ## Remove .venv and what tools have left; runs/ stays.
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
