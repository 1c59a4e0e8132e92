# make demo   the main job on built-in data, with a table, a picture and a report
# make quick  unit tests and the contract of a few methods: after every change
# make test   lint, types and every test
# make mutants  deliberate faults, which the tests must find; minutes
# make bench  speed, as ratios to a plain loop in the same run
# make bench-million  what a million registered clients cost
# make docs   the documentation as a site in site/, which opens from disk
# make attack  hostile clients, servers and strangers at a federation's sockets, all on this machine; minutes
# make chaos  a federation whose clients, server and SuperLink are killed in the middle of rounds; minutes
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests that share a run stay on one worker.
PYTEST := $(BIN)/pytest --numprocesses auto --dist loadgroup

.PHONY: demo quick test mutants lint format bench bench-million docs attack chaos chromium clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[images,plots,hf,export,tensorboard,wandb,mlflow,flower,ray,docs,dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/fedfeat compare configs/digits.toml --methods finetune,fedcbdr,fedcbdr+feat,fedfeat --seeds 0,1,2 --out runs/demo

quick: $(STAMP)
	$(PYTEST) -m 'not (slow or processes or browser or ray or interpreter or docs or real_data or chaos or attack)'

test: $(STAMP) lint chromium
	$(PYTEST) --processor-time --durations 20

# The tests find some forty deliberate faults.
mutants: $(STAMP)
	$(BIN)/python tests/mutants.py

# The report is tested in a real browser. Where it is missing, root on Debian gets it; others are told.
chromium:
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get; then apt-get update && apt-get install --yes --no-install-recommends chromium; \
	else echo "the tests of the report need Chromium: install it (Debian: sudo apt-get install chromium)" && exit 1; fi

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python benchmarks/loop.py
	$(BIN)/python benchmarks/methods.py
	$(BIN)/python benchmarks/report_page.py

bench-million: $(STAMP)
	$(BIN)/python benchmarks/loop.py --registered 1000000

docs: $(STAMP)
	$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going --doctree-dir build/doctrees docs site
	@echo "open site/index.html"

# What happened is written into the table of docs/attacks.md.
attack: $(STAMP)
	$(BIN)/pytest -m attack tests/attack --attack-table docs/attacks.md

chaos: $(STAMP)
	$(BIN)/pytest -m chaos tests/engines/flower --attack-table docs/attacks.md

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
