# `make demo` and `make test` are all that a newcomer needs; both set up .venv by themselves.

PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/.installed
MODEL := efficientnet_lite0
MODEL_FILE := model.pt
ROUNDS ?= 3

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# Most of what the packages hold is never imported, so nothing is compiled while they are installed;
# the first run must then be able to keep what it compiles.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## Show what there is to make
	@sed -n 's/^\([a-z]*\):.* ## /make \1\t/p' $(MAKEFILE_LIST) | expand -t 14

.PHONY: demo
demo: $(INSTALLED) ## Export EfficientNet-Lite0 and convert it for an Edge TPU and an Ethos-U55
	python samples/$(MODEL).py
	@rm -rf build/$(MODEL)_edgetpu build/$(MODEL)_ethos_u55_128
	edgeport convert $(MODEL_FILE) --target edgetpu --calibration samples/photos --evaluation samples/photos_evaluation -o build/$(MODEL)_edgetpu
	edgeport convert $(MODEL_FILE) --target ethos-u55-128 --calibration samples/photos --evaluation samples/photos_evaluation -o build/$(MODEL)_ethos_u55_128

.PHONY: test
test: lint ## Run the linters, the type checker and all tests, with coverage
	pytest -rs --cov --cov-report=term:skip-covered

.PHONY: lint
lint: $(INSTALLED) ## Run the linters and the type checker alone
	ruff check .
	ruff format --check .
	mypy
	mypy samples benchmarks .ci
	lint-imports

.PHONY: bench
bench: $(INSTALLED) ## Measure conversion and start-up against the bare libraries (minutes)
	@[ -d samples/photos ] && [ -f $(MODEL_FILE) ] || python samples/$(MODEL).py
	python benchmarks/startup.py
	python benchmarks/convert_time.py $(MODEL_FILE) --calibration samples/photos --rounds $(ROUNDS)

.PHONY: clean
clean: ## Remove the environment and everything that was built
	rm -rf $(VENV) build dist $(MODEL_FILE) samples/photos samples/photos_evaluation *.egg-info
	rm -rf .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment is made again only when what it should hold has changed.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "edgeport needs Python 3.11 or newer; name one with: make PYTHON=python3.11" >&2; exit 1; }
	@echo "Setting up $(VENV) (2 GB; some minutes, once) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev,samples,ethos-u]'
	@touch $@
