# make demo   the main job on built-in data, with a table, a picture and a report
# make test   lint, types and every test
# make bench  speed, as ratios to a plain loop in the same run
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint format bench clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[images,plots,dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/fedfeat compare configs/digits.toml --methods finetune,fedcbdr,fedcbdr+feat --seeds 0,1,2 --out runs/demo

test: $(STAMP) lint
	$(BIN)/pytest --numprocesses auto

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python benchmarks/loop.py
	$(BIN)/python benchmarks/methods.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
