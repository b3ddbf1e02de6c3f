# SPDX-License-Identifier: MIT
# Two commands matter: `make demo` and `make test`. Both set up everything they need in .venv and build/.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCHVISION := torchvision==0.28.0
XPU_TORCHES := 2.11.0 2.12.1 2.13.0 2.14.1

export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)

cpp_files = $(shell find csrc tests/cpp -name '*.h' -o -name '*.cpp')
py_dirs := python tests tools $(wildcard bench)
wheel_sources = $(shell find csrc python cmake -type f -not -path '*/__pycache__/*' | sort) CMakeLists.txt pyproject.toml \
  $(wildcard README.md)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-cpp test-python bench lint format stubs sanitize dist xpu-headers install dev clean FORCE

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

demo: install ## Set up, build, and run the benchmark on the best device found; writes out/bench.json and out/bench.png
	@mkdir -p out
	$(BIN)/xpugraph bench --models mlp,mobilenet_v3_small --batch-sizes 1,3,8,17,64 \
	  --json out/bench.json --plot out/bench.png

test: build/release/.tests-built install dev ## Set up, build, and run the C++ and the Python tests
	@cpp=0; $(MAKE) --no-print-directory test-cpp || cpp=$$?; \
	python=0; $(MAKE) --no-print-directory test-python || python=$$?; \
	if [ $$cpp -ne 0 ]; then echo "make test: the C++ tests failed"; fi; \
	if [ $$python -ne 0 ]; then echo "make test: the Python tests failed"; fi; \
	[ $$cpp -eq 0 ] && [ $$python -eq 0 ]

test-cpp: build/release/.tests-built ## The C++ tests alone
	$(BIN)/ctest --preset release

test-python: install dev ## The Python tests alone; PYTEST="-k name" passes options on
	$(BIN)/python -m pytest $(PYTEST)

bench: install ## Measure speed and memory (bench/)
	@mkdir -p out
	@for script in $(filter-out bench/_%,$(wildcard bench/*.py)); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

lint: install dev ## Check format, style, types and the committed stubs
	$(BIN)/clang-format --dry-run --Werror $(cpp_files)
	$(BIN)/ruff check $(py_dirs)
	$(BIN)/ruff format --check $(py_dirs)
	$(BIN)/mypy
	$(BIN)/python tools/stubs.py --check

format: dev ## Format all sources
	$(BIN)/clang-format -i $(cpp_files)
	$(BIN)/ruff check --fix --select I $(py_dirs)
	$(BIN)/ruff format $(py_dirs)

stubs: install dev ## Write the stubs of xpugraph._C again
	$(BIN)/python tools/stubs.py

sanitize: $(VENV)/.requirements ## The C++ tests that need no device, under the sanitizers
	$(BIN)/cmake --preset dev
	$(BIN)/cmake --build --preset dev
	$(BIN)/ctest --preset dev

dist: $(VENV)/.requirements ## Build source archive and wheel, and check what is in them
	$(BIN)/python tools/check_dist.py

xpu-headers: $(VENV)/.requirements ## Compile what uses SYCL and torch.xpu against the headers of torch 2.11 to 2.14 (large downloads)
	$(BIN)/python tools/check_xpu_headers.py $(XPU_TORCHES)

clean: ## Remove everything that was built, .venv included
	rm -rf build out dist $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

# ---- set-up: each stamp is as new as what it was made from ----------------------------------------------------------

install: $(VENV)/.installed
dev: $(VENV)/.requirements-dev

$(VENV)/.created:
	@$(PYTHON) -c 'import ensurepip' || { echo "python3 lacks venv: apt install python3-venv python3-dev"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# torchvision goes in alone, since its wheel depends on the CUDA build of torch.
$(VENV)/.requirements: requirements.txt $(VENV)/.created
	@echo "installing requirements.txt into $(VENV) (some minutes the first time)"
	@$(PIP) install -qq -r requirements.txt
	@$(PIP) install -qq --no-deps $(TORCHVISION)
	@touch $@

$(VENV)/.requirements-dev: requirements-dev.txt $(VENV)/.requirements
	@echo "installing requirements-dev.txt into $(VENV)"
	@$(PIP) install -qq -r requirements-dev.txt
	@touch $@

# The list of sources is a prerequisite too, so that a removed file rebuilds. Objects stay in build/, so that a change in
# Python alone compiles nothing.
build/sources.txt: FORCE
	@mkdir -p build
	@printf '%s\n' $(wheel_sources) | cmp -s - $@ || printf '%s\n' $(wheel_sources) > $@

$(VENV)/.installed: $(VENV)/.requirements $(wheel_sources) build/sources.txt
	@echo "building xpugraph (some minutes the first time)"
	$(PIP) install --no-build-isolation --no-deps --force-reinstall .
	@touch $@

build/release/.tests-built: $(VENV)/.requirements FORCE
	@mkdir -p build
	@$(BIN)/cmake --preset release > build/configure-tests.log 2>&1 || { cat build/configure-tests.log; exit 1; }
	$(BIN)/cmake --build --preset release
	@touch $@
