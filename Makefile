# Everything a person or a machine calls. `make demo` and `make test` need nothing but Python 3.11
# with venv, make and pip; both do their set-up once.
SHELL := /bin/bash
PYTHON ?= python3
export PYTHON
# onnxruntime's wheels start a thread and write into HOME when this is not set; numpy's BLAS would
# start one thread per core in every process.
export ORT_DISABLE_TELEMETRY := 1
export OPENBLAS_NUM_THREADS := 1
# For the demo: on = authority, joined nodes, mutual TLS on every way.
TLS ?= off
BIN := .venv/bin
CODE := src tests scripts

.PHONY: help demo test check fmt test-fast test-long venv venv-test models system lock bench clean

help:
	@echo "make demo       set up, then answer real requests over several nodes; TLS=on: by mutual TLS"
	@echo "make test       set up, then every check and test (what CI runs)"
	@echo "make check      the static part: lint, types, contracts, limits"
	@echo "make test-fast  tests without those that start whole networks"
	@echo "make test-long  what takes too long for CI"
	@echo "make bench      din bench run road"

venv:
	@scripts/setup.sh requirements.lock stamp-demo

venv-test:
	@scripts/setup.sh requirements-test.lock stamp-test

demo: venv
	@$(BIN)/python scripts/fetch_models.py centerface
	@$(BIN)/python scripts/demo.py --tls $(TLS)

models: venv-test
	@$(BIN)/python scripts/fetch_models.py

system:
	@scripts/system.sh
	@scripts/mlserver.sh

check: venv-test
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/lint-imports
	$(BIN)/basedpyright
	$(BIN)/deptry src
	$(BIN)/codespell src tests docs scripts README.md ARCHITECTURE.md
	$(BIN)/pytest tests/architecture

fmt: venv-test
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

test: system models check
	$(BIN)/pytest -n 2 --dist loadfile -m "not slow and not system" --ignore tests/architecture
	$(BIN)/pytest -m "system and not slow"
	scripts/readme.sh

test-fast: models
	$(BIN)/pytest -n 2 --dist loadfile -m "not slow and not system"

test-long: system models
	$(BIN)/pytest -m slow --timeout 3600

bench: venv-test
	$(BIN)/din bench run road

lock:
	scripts/lock.sh

clean:
	rm -rf .venv .cache demo-output build dist src/*.egg-info
