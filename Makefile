# `make run` and `make test` set everything up by themselves: all they need is Python 3.11 or newer.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
JOBS   ?= auto
# a file is one process's work, so that what its tests share is made once; slow files first (tests/conftest.py)
SHARED := -n $(JOBS) --dist loadfile --no-loadscope-reorder
# compiled files are kept, whatever the environment says: dozens of processes start in the tests, and all would compile
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

.PHONY: run demo test lint types quick tests floors test-browser docs fuzz bench bench-fusion bench-fusion-wide bench-serve venv clean help

help:          ## list the commands
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

venv: $(STAMP) ## the virtual environment with everything installed

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "faverage needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: $(STAMP)  ## few-shot class-incremental learning on the bundled digits: training, sessions, table, report
	@$(BIN)/faverage run digits --out runs/digits

demo: $(STAMP) ## fuse six models on the bundled digits; print the table and the explanation
	@$(BIN)/python examples/fuse_digits.py

lint: $(STAMP) ## ruff: format and rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: $(STAMP) ## mypy, strict, on src/
	@$(BIN)/mypy

quick: $(STAMP) ## the tests that take moments, in less than a minute: nothing slow, no browser, GPU or real data
	@$(PYTEST) $(BIN)/python -m pytest $(SHARED) tests -m "not slow and not browser and not gpu and not data"

tests: $(STAMP) ## the tests alone; those in a browser are make test-browser
	@$(PYTEST) $(BIN)/python -m pytest $(SHARED) -m "not browser"

test: lint types tests ## lint, types, tests

# torch stays at the version of constraints.txt, since older ones bring gigabytes of CUDA: make floors TORCH=2.6.0
floors: .venv-floors/floors.txt ## the tests with the lowest versions of all dependencies; SELECT="not slow" takes some
	@$(PYTEST) .venv-floors/bin/python -m pytest $(SHARED) -m "$(SELECT)"

.venv-floors/floors.txt: pyproject.toml constraints.txt tools/floors.py
	@test -x .venv-floors/bin/python || $(PYTHON) -m venv .venv-floors
	@$(PYTHON) tools/floors.py $(TORCH) > .venv-floors/wanted.txt
	.venv-floors/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-floors/wanted.txt -e '.[dev]'
	@mv .venv-floors/wanted.txt $@

test-browser: $(STAMP) ## the page in a real browser (chromium), screenshots into FAVERAGE_SCREENSHOTS if it is set
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || test -n "$$FAVERAGE_CHROMIUM" || \
	  { echo "no chromium: apt-get install chromium, or name the program in FAVERAGE_CHROMIUM"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,browser]'
	@$(PYTEST) $(BIN)/python -m pytest $(SHARED) -rs -m browser tests/app/server tests/test_examples.py tests/test_docs.py

docs: $(STAMP) ## the documentation as a site, in site/; open site/index.html. Warnings are errors
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

fuzz: $(STAMP) ## 10,000 broken inputs for every reader and route; FUZZ_COUNT, FUZZ_SECONDS and FUZZ_SEED set others
	@OMP_NUM_THREADS=1 $(BIN)/python -m fuzz --count $(or $(FUZZ_COUNT),10000) --seconds $(or $(FUZZ_SECONDS),900) \
	  --seed $(or $(FUZZ_SEED),0)

bench: $(STAMP) ## cost of one training step against the naive step
	@$(BIN)/python benchmarks/step.py

bench-fusion: $(STAMP) ## every fuser on scikit-learn's bundled data; about ten minutes
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/fusion.py --json results/fusion.json --markdown docs/fusion.md

bench-fusion-wide: $(STAMP) ## every fuser on many public tables, those for choosing; docs/fusion-wide.md says where to get them
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/fusion_wide.py --json results/fusion-wide.json \
	  --markdown docs/fusion-wide.md --plot docs/fusion-wide

bench-serve: $(STAMP) ## times of predictions over HTTP, alone and while another client teaches; about two minutes
	@$(BIN)/python benchmarks/serve.py

clean:         ## remove the virtual environment and caches
	rm -rf $(VENV) .venv-floors site .mypy_cache .ruff_cache build *.egg-info src/*.egg-info
