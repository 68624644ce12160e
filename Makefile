# make demo: the main job on a sample cluster.   make test: lint, types, tests.   Both work from nothing.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One thread a process: LightGBM and numpy slow down badly when their threads wait for a busy neighbour.
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test test-slurm test-web lint types unit sanitize install wheel bench clean

# what the native core is compiled from; a change installs again, which compiles what changed
NATIVE := hatch_build.py .src/tidegrid/native.hpp $(shell find estimators scheduler data models pipeline app -name '*.[ch]pp')

demo: $(VENV)/.runtime
	@$(BIN)/tidegrid demo

test: lint types unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(BIN)/pytest -q -n 2 --dist loadfile

test-slurm: $(VENV)/.dev
	@tests/slurm/prepare.sh; case $$? in 0) TIDEGRID_TEST_SLURM=1 $(BIN)/pytest -q tests/slurm;; 3) ;; *) exit 1;; esac

# the page in a real browser, the API under made-up requests, a real Prometheus, the store in a real PostgreSQL
test-web: $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[web]'
	@tests/web/prepare.sh; case $$? in 0) TIDEGRID_TEST_WEB=1 $(BIN)/pytest -q tests/web;; 3) ;; *) exit 1;; esac

# the kernels' tests on a library that checks every access; needs g++ or clang++
sanitize: $(VENV)/.dev
	$(BIN)/python hatch_build.py --sanitize
	TIDEGRID_NATIVE=build/sanitize/_native.so LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 $(BIN)/pytest -q $$(find tests -name 'test_*kernels.py')

wheel: $(VENV)/.dev
	$(BIN)/python tests/house/wheel_check.py

install: $(VENV)/.dev

$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON) here; install Python 3.11 or later (Debian, Ubuntu: apt-get install python3 python3-venv)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is $$($(PYTHON) -V 2>&1); tidegrid needs Python 3.11 or later: make PYTHON=python3.12 …"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: the venv module is missing; install it (Debian, Ubuntu: apt-get install python3-venv)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.runtime: pyproject.toml $(NATIVE) $(VENV)/.python
	@echo "make: installing tidegrid into $(VENV) (a minute or two the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@$(BIN)/python -c 'import lightgbm' 2>/dev/null || { echo "make: LightGBM does not load; its OpenMP runtime libgomp is likely missing (Debian, Ubuntu: apt-get install libgomp1)"; exit 1; }
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo "make: installing the development tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .src/tidegrid/_native.*
