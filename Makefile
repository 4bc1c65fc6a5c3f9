# Needs python3 (3.11 or newer) and nothing else; everything goes into a virtual environment of its own.
#
#   make demo                     see it work
#   make test ARGS="-k backlog"   run the tests, or some of them
#   make check                    what a change must pass besides the tests
#   make docs                     build the documentation in site/, and check its links
#   make lock                     write requirements/ anew, with the newest versions
#   PYTHON=python3.13 make test   the same with another interpreter, in .venv-3.13

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
MATRIX := 3.11 3.12 3.13
ARGS ?=

version_of = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
find_python = $(shell for p in python$(1) $(HOME)/.pyenv/versions/$(1).*/bin/python$(1); do \
	if "$$p" -c "" 2>/dev/null; then echo "$$p"; break; fi; done)

ifneq ($(filter python3.%,$(PYTHON)),)
override PYTHON := $(or $(call find_python,$(PYTHON:python%=%)),$(PYTHON))
endif

VENV := .venv$(if $(filter-out python3,$(PYTHON)),-$(or $(call version_of,$(PYTHON)),unknown))
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: help demo test check docs format bench coverage matrix lock clean

help:
	@sed -n 's/^#  //p' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.package
	$(BIN)/python -m bullpen demo $(ARGS)

# One process more than there are cores: much of what is tested is waiting. What fails gets a second try, alone: a failure
# that only a busy machine brings about is named, and does not hide that the rest is green.
test: $(VENV)/.test
	@status=0; \
	$(BIN)/python -m pytest --numprocesses=$$(($$(getconf _NPROCESSORS_ONLN) + 1)) --dist=worksteal $(ARGS) || status=$$?; \
	[ $$status -ne 1 ] && exit $$status; \
	echo "make test: once more, alone, what failed; whatever passes now is flaky, and a defect to mend"; \
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures=none -v $(ARGS)

check: $(VENV)/.test $(VENV)/.lint $(VENV)/.docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src tests benchmarks $(wildcard examples/*.py)
	$(BIN)/basedpyright
	$(BIN)/python -m pytest -q tests/test_architecture.py
	$(BIN)/python -m tests.docs.site

docs: $(VENV)/.docs
	$(BIN)/python -m tests.docs.site

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(ARGS)

coverage: $(VENV)/.test
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

matrix:
	@missing="$(strip $(foreach v,$(MATRIX),$(if $(call find_python,$(v)),,$(v))))"; \
	if [ -n "$$missing" ]; then \
		echo "make matrix: no interpreter for Python $$missing (looked on PATH and in ~/.pyenv/versions)" >&2; exit 1; \
	fi
	$(foreach v,$(MATRIX),$(MAKE) --no-print-directory test PYTHON=python$(v) && )true

clean:
	rm -rf .venv .venv-* build dist site .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp per dependency group. A stamp is written last, so an interrupted installation starts again.

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "bullpen needs Python 3.11 or newer, and $(PYTHON) is not; try PYTHON=python3.13 make ..." >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# What is installed is in requirements/: one version of each package, with the hashes of its files. The package itself
# is built with the hatchling that is installed, because an isolated build would fetch one that is not locked.

INSTALL := $(PIP) install --require-hashes --only-binary :all:

$(VENV)/.package: pyproject.toml requirements/package.txt $(VENV)/.created
	$(INSTALL) --requirement requirements/package.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.test $(VENV)/.lint $(VENV)/.bench $(VENV)/.docs $(VENV)/.lock: $(VENV)/.%: requirements/%.txt $(VENV)/.package
	$(INSTALL) --requirement $<
	@touch $@

# Writes requirements/ anew, with the newest versions that pyproject.toml allows: all groups together, then each of them.
GROUPS := package test lint bench docs lock
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

lock: $(VENV)/.lock
	$(COMPILE) --upgrade pyproject.toml $(addprefix --group ,$(GROUPS)) --output-file $(VENV)/all.txt
	$(foreach group,$(GROUPS),$(COMPILE) pyproject.toml --group $(group) --constraints $(VENV)/all.txt --output-file requirements/$(group).txt && )true
	$(COMPILE) examples/deploy/requirements.in --constraints $(VENV)/all.txt --output-file examples/deploy/requirements.txt
