# Everything a person needs: `make demo`, `make test`, `make check`. The environment is .venv; it is reinstalled only
# when pyproject.toml or the pinned versions change.
# The first that is supported: torch 2.13.0 and triton 3.7.1 have wheels for these. Name another one by PYTHON=...
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
PYTHON ?= $(shell for one in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$one -c '$(SUPPORTED)' >/dev/null 2>&1 && echo $$one && break; done)
TASK ?= softmax
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
CPU_INDEX := https://download.pytorch.org/whl/cpu
comma := ,
GPU_EXTRA = $(if $(filter gpu,$(FLAVOUR)),[gpu])
FLAVOUR := $(shell if command -v nvidia-smi >/dev/null 2>&1 || test -e /dev/nvidiactl; then echo gpu; else echo cpu; fi)
CONSTRAINTS := constraints/$(FLAVOUR).txt

# Without a GPU the CPU build of torch (200 MB) is preferred to the CUDA build (gigabytes). Its index is only named when
# it answers within seconds, so that pip neither stalls nor fails where it cannot be reached.
PROBE := import signal, urllib.request as u; signal.alarm(5); u.urlopen('$(CPU_INDEX)/torch/', timeout=4)
EXTRA_INDEX = $$(test $(FLAVOUR) = cpu && $(BIN)/python -c "$(PROBE)" >/dev/null 2>&1 && echo --extra-index-url $(CPU_INDEX))
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) $(EXTRA_INDEX)

.PHONY: demo test check docs owner fuzz format clean help locked hashes audit

help: ## what there is to make
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

demo: $(VENV)/.installed-$(FLAVOUR) ## optimise a kernel here and now; no key and no GPU needed
	$(BIN)/optimize --task $(TASK) $(ARGS)

# What ARGS chooses runs in one process: a GPU is not shared, and -s and --pdb need a terminal. Bytecode is kept: the
# tests start some eighty interpreters, each of which would compile our modules anew (0.2 s).
test: $(VENV)/.developed-$(FLAVOUR) ## the tests that need neither key nor GPU
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(or $(ARGS),-n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder)

check: $(VENV)/.developed-$(FLAVOUR) ## lint, format, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The documents are copied as they lie, with what they link to. --strict: a link or an anchor that leads nowhere ends it.
docs: $(VENV)/.documented-$(FLAVOUR) ## the documents as a site, in build/site
	@rm -rf build/docs build/site && mkdir -p build/docs
	@cp --parents *.md corpus/README.md recipes/README.md docs/*.md docs/demo/README.md docs/*.ipynb docs/site.* docs/pictures/* build/docs
	$(BIN)/zensical build --strict --clean

owner: ## fill in where the project lives: make owner NAME=you
	sed -i 's#github\.com/[^/]*/kerneltune#github.com/$(NAME)/kerneltune#; s#marketplace add [^/]*/#marketplace add $(NAME)/#' \
		README.md pyproject.toml docs/agents.md

# Two steps: pip refuses hashes and an editable package in one. Constraints cannot carry them, as each package must have
# one then. torch is the CUDA build, the only one on the package index.
locked: | $(BIN)/python ## an environment like that of the tests, the hash of every file checked
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --require-hashes -r constraints/hashes.txt
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(VENV)/.installed-$(FLAVOUR) $(VENV)/.developed-$(FLAVOUR) $(VENV)/.documented-$(FLAVOUR)

hashes: ## write constraints/hashes.txt anew; needs uv
	uv pip compile pyproject.toml --quiet --extra gpu --extra dev --extra docs --extra fuzz -c constraints/gpu.txt --generate-hashes --universal \
		--python-version 3.11 --no-annotate --no-header -o constraints/hashes.txt

audit: | $(BIN)/python ## known holes of the pinned versions; needs the network
	$(BIN)/python -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)/audit/bin/pip-audit --strict --disable-pip --no-deps --progress-spinner off -r constraints/gpu.txt

# All targets together take FUZZ_SECONDS; ARGS="ttir ptx" names some of them.
fuzz: $(VENV)/.developed-$(FLAVOUR) ## ten minutes of strange bytes for everything that reads them
	$(BIN)/python -c "import atheris" 2>/dev/null || $(INSTALL) -e ".[dev,fuzz$(if $(filter gpu,$(FLAVOUR)),$(comma)gpu)]"
	$(BIN)/python -m tests.fuzz --seconds $(or $(FUZZ_SECONDS),600) $(ARGS)

format: $(VENV)/.developed-$(FLAVOUR) ## put the sources into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environment and the caches; runs/ stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .grimp_cache .hypothesis

$(BIN)/python:
	@$(or $(PYTHON),false) -c '$(SUPPORTED)' || { echo 'kerneltune needs Python 3.11 to 3.14, and $(or $(PYTHON),no python3 here) is not one. Name another: make PYTHON=/path/to/python3.12' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-$(FLAVOUR): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(INSTALL) -e ".$(GPU_EXTRA)"
	@touch $@

$(VENV)/.documented-$(FLAVOUR): pyproject.toml $(CONSTRAINTS) | $(VENV)/.developed-$(FLAVOUR)
	$(INSTALL) -e ".[docs]"
	@touch $@

$(VENV)/.developed-$(FLAVOUR): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(INSTALL) -e ".[dev$(if $(filter gpu,$(FLAVOUR)),$(comma)gpu)]"
	@touch $@ $(VENV)/.installed-$(FLAVOUR)
