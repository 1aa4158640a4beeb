# `make run` and `make test` install what they need into .venv first; nothing outside the folder is touched.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: run serve test lint bench install clean
run: .venv/run.ok
	$(BIN)/python -m flows.cli run

serve: .venv/run.ok
	$(BIN)/python -m flows.cli serve

test: .venv/dev.ok
	$(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder

lint: .venv/dev.ok
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/dev.ok
	$(BIN)/python -m benchmarks.pipeline
	$(BIN)/python -m benchmarks.training_overhead
	$(BIN)/python -m benchmarks.kill_sweep
	$(BIN)/python -m benchmarks.flow_overhead

install: .venv/dev.ok

# torch comes first and pinned: an unpinned torch pulls gigabytes that this project does not need.
.venv/run.ok: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Shipway needs Python 3.11 or newer with venv (Debian: apt-get install python3-venv); PYTHON=... names another"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv (once, a few minutes)"
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) --editable .
	touch $@

.venv/dev.ok: .venv/run.ok
	$(PIP) --editable '.[dev,bench]'
	touch $@

clean:
	rm -rf .venv build *.egg-info
