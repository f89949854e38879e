# make reproduce   every figure at the quick profile, into reports/quick/
# make test        everything CI runs
# make docs        the book, into _docs/
# make lint        ruff and mypy
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PROFILE ?= quick

.PHONY: setup data browser loops test lint reproduce bench readme docs lab clean

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml settings.ini
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --requirement requirements.lock
	$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib || true  # on all cores; some packages bring files for a later Python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

data: setup
	$(BIN)/rvi data fetch mnist fashion_mnist toy

browser:
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || echo "chromium cannot be installed here: the tests of the report page will be skipped"

loops: setup
	@printf '%s\n' rvi vad vae | OMP_NUM_THREADS=1 xargs -n 1 -P 2 $(BIN)/python tests/loops.py --note > /dev/null

test: setup  # loops are compiled once, while a browser is fetched
	$(MAKE) --no-print-directory --jobs 3 data browser loops
	OMP_NUM_THREADS=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -n 2 --dist worksteal

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

reproduce: setup
	$(BIN)/rvi reproduce --profile $(PROFILE)

bench: setup
	$(BIN)/python bench/speed.py
	$(BIN)/python bench/imputation.py
	$(BIN)/python bench/imputer_scale.py
	$(BIN)/python bench/imputer_times.py
	$(BIN)/python bench/rubin.py
	$(BIN)/python bench/rows.py
	$(BIN)/python bench/row_adam.py
	$(BIN)/python bench/groups.py
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m nbconvert --log-level ERROR --to notebook --execute --inplace bench/speed.ipynb bench/comparison.ipynb
	$(BIN)/nbdev_clean --fname bench

readme: setup
	$(BIN)/python -m nbconvert --log-level ERROR --to markdown --stdout --TagRemovePreprocessor.enabled=True \
	  --TagRemovePreprocessor.remove_input_tags hide-input nbs/index.ipynb > README.md.part
	mv README.md.part README.md

docs: setup
	$(BIN)/python docs/build.py

lab: setup
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) nbs

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache _docs _proc reports/smoke reports/quick
