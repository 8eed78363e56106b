# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin
# Where the system's Python has torch already (a GPU machine, say), that torch is used.
SYSTEM_TORCH := $(shell $(PYTHON) -c "import torch" 2>/dev/null && echo yes)

.PHONY: demo test check bench format clean chromium

demo: .venv/ready
	$(BIN)/python examples/demo.py

test: .venv/ready-dev chromium
	$(BIN)/python -m pytest -n auto --dist worksteal

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

bench: .venv/ready-dev
	PYTHONPATH=.:tests $(BIN)/python benchmarks/formulations.py

format: .venv/ready-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist demo .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/ready: pyproject.toml
	$(PYTHON) -m venv $(if $(SYSTEM_TORCH),--system-site-packages) .venv
	$(if $(SYSTEM_TORCH),,$(BIN)/pip install --quiet torch==2.13.0)
	$(BIN)/pip install --quiet --editable .
	touch $@

# torchvision's wheel fits one torch only; beside a system's own torch its models are not tested.
.venv/ready-dev: .venv/ready
	$(BIN)/pip install --quiet --editable ".[dev,models]"
	$(if $(SYSTEM_TORCH),,$(BIN)/pip install --quiet --no-deps torchvision==0.28.0 timm==1.0.31)
	touch $@
