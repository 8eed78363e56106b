# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin
# Where the system's Python has torch already (a GPU machine, say), that torch is used; what an
# active virtual environment has, another one does not see.
SYSTEM_TORCH := $(shell $(PYTHON) -c "import sys; sys.exit(sys.prefix != sys.base_prefix)" && \
  $(PYTHON) -c "import torch" 2>/dev/null && echo yes)

# Many images set this: every process would compile the package, and every worker all tests, anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-long test-all test-gpu check docs format clean kernels chromium coverage mutants wheel wheel-test

demo: .venv/ready
	$(BIN)/python examples/demo.py

test: .venv/ready-dev chromium kernels
	$(BIN)/python -m pytest -n auto --dist worksteal

# What is marked long: whole matrices, other processes, what takes seconds where others show much
# the same. QUARTER=0 to QUARTER=3 are the quarters of it.
test-long: .venv/ready-dev chromium kernels
	$(BIN)/python -m pytest -n auto --dist worksteal -m long $(if $(QUARTER),--quarter $(QUARTER))

test-all: test test-long

# On a machine with a GPU, one test after another: timings and peaks belong to one process.
test-gpu: .venv/ready-dev
	$(BIN)/python -m pytest -p no:xdist -m gpu

# Two halves of the dynamic programs, compiled side by side; a matter of seconds once that is done.
kernels: .venv/ready-dev
	@for half in chain "hybrid join"; do \
	  PYTHONPATH=. $(BIN)/python tests/support/compile_kernels.py $$half & \
	done; wait

# The browser in which reports are tested. Where it cannot be had, those tests skip and say so.
chromium:
	@for name in chromium chromium-browser google-chrome-stable google-chrome; do \
	  if command -v $$name > /dev/null; then exit 0; fi; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "installing Chromium, to test reports in"; \
	  (timeout 300 apt-get -qq update && DEBIAN_FRONTEND=noninteractive timeout 600 apt-get -qq install -y \
	    -o DPkg::Lock::Timeout=300 --no-install-recommends chromium fonts-dejavu-core) > /dev/null 2>&1 || \
	  echo "Chromium cannot be installed here; reports are not tested in a browser"; \
	else \
	  echo "Chromium is not installed, so reports are not tested in a browser; get it by your" \
	    "package manager, on Debian with: apt install chromium"; \
	fi

check: .venv/ready-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(MAKE) --no-print-directory docs

# Strict: a warning, such as a link to nowhere, is an error.
docs: .venv/ready-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "the pages are in site/index.html"

# Branches that the tests take. Kernels are counted as Python: compiled code leaves no trace, so the
# tests of KERNEL_TESTS run a second time, uncompiled. GPU paths need a GPU; they say so themselves.
KERNEL_TESTS := tests/unit/test_jit.py tests/unit/test_bucketed_envelope.py tests/agreement/test_dp_engines.py
coverage: .venv/ready-dev chromium
	$(BIN)/coverage erase
	$(BIN)/python -m pytest -n auto --dist worksteal -m "" --cov --cov-report=
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -n auto -m "" --cov --cov-append --cov-report= $(KERNEL_TESTS)
	$(BIN)/coverage report

# Errors put into the code one by one, in a copy: a test that is named for each has to fail.
mutants: .venv/ready-dev
	PYTHONPATH=tests $(BIN)/python -m mutants

wheel: .venv/ready-dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist

# The built wheel in an environment and a folder of its own, out of which no source can be imported.
WHEEL_TESTS := tests
wheel-test: wheel
	place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT && set -e && \
	cp -r docs tests testbed examples benchmarks pyproject.toml CITATION.cff "$$place" && \
	$(PYTHON) -m venv $(if $(SYSTEM_TORCH),--system-site-packages) "$$place/venv" && \
	$(if $(SYSTEM_TORCH),,"$$place/venv/bin/pip" install --quiet torch==2.13.0 &&) \
	"$$place/venv/bin/pip" install --quiet "$$(echo dist/*.whl)[dev,models]" && \
	$(if $(SYSTEM_TORCH),,"$$place/venv/bin/pip" install --quiet --no-deps torchvision==0.28.0 timm==1.0.31 &&) \
	cd "$$place" && venv/bin/python -c "import chainstay, pathlib; \
	  home = pathlib.Path(chainstay.__file__).parent; print(chainstay.__version__, home); \
	  assert 'site-packages' in home.parts and (home / 'py.typed').is_file()" && \
	venv/bin/python -m pytest -n auto --dist worksteal $(WHEEL_TESTS)

format: .venv/ready-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist demo site .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/ready: pyproject.toml
	@echo "installing what is needed into .venv, torch first: some minutes, 1.5 GB"
	$(PYTHON) -m venv $(if $(SYSTEM_TORCH),--system-site-packages) .venv
	$(if $(SYSTEM_TORCH),,$(BIN)/pip install --quiet torch==2.13.0)
	$(BIN)/pip install --quiet --editable ".[report]"
	touch $@

# torchvision's wheel fits one torch only; beside a system's own torch its models are not tested.
.venv/ready-dev: .venv/ready
	$(BIN)/pip install --quiet --editable ".[dev,models]"
	$(if $(SYSTEM_TORCH),,$(BIN)/pip install --quiet --no-deps torchvision==0.28.0 timm==1.0.31)
	touch $@
