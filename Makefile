# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin
# Where the system's Python has torch already (a GPU machine, say), that torch is used.
SYSTEM_TORCH := $(shell $(PYTHON) -c "import torch" 2>/dev/null && echo yes)

.PHONY: demo test check bench format clean

demo: .venv/ready
	$(BIN)/python examples/demo.py

test: .venv/ready-dev
	$(BIN)/python -m pytest -n auto --dist worksteal

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
