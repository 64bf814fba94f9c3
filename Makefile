# make serve | test | lint | bench ...   (make help lists them)
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# torch is pinned exactly, and installed first: any looser requirement would download the CUDA build.
TORCH := $(shell sed -n 's/^ *"\(torch==[^"]*\)",/\1/p' pyproject.toml)
BUILD_TOOLS := 'scikit-build-core>=0.11' 'nanobind>=2.4' 'cmake>=3.22' 'ninja>=1.11'
NATIVE_SOURCES := $(shell find kernels service -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name CMakeLists.txt)

.PHONY: help serve test install install-dev lint format proto bench bench-kernels \
        check-cuda test-gpu test-cpp clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

serve: install ## build what is needed and serve the demo model
	@$(BIN)/fused-mlp serve

test: install-dev test-cpp ## build what is needed and run the whole test suite
	$(BIN)/python -m pytest

# One build per sanitizer, of the C++ tests alone: no Python, no torch.
test-cpp: test-cpp-thread test-cpp-address,undefined ## the C++ tests under ThreadSanitizer and AddressSanitizer

test-cpp-%: install-dev
	@mkdir -p build
	@$(BIN)/cmake -S . -B build/cpp-$* -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DFUSED_MLP_CPP_TESTS=ON -DFUSED_MLP_SANITIZE=$* >build/cpp-$*.log \
	  || { cat build/cpp-$*.log; exit 1; }
	@$(BIN)/cmake --build build/cpp-$*
	@$(BIN)/ctest --test-dir build/cpp-$* --output-on-failure

install: $(VENV)/.installed ## venv, build, install
install-dev: $(VENV)/.installed-dev

$(VENV)/.torch: pyproject.toml
	@scripts/system-packages serve
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing $(TORCH) and the build tools"
	@$(PIP) $(TORCH) && $(PIP) $(BUILD_TOOLS)
	@touch $@

$(VENV)/.installed: $(VENV)/.torch CMakeLists.txt $(NATIVE_SOURCES)
	@echo "building and installing fused-mlp (a minute or two the first time)"
	@PATH="$(abspath $(BIN)):$$PATH" $(PIP) --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/.installed
	@scripts/system-packages test
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

$(VENV)/.installed-bench: pyproject.toml | $(VENV)/.installed
	@scripts/system-packages bench
	@$(PIP) --no-build-isolation --editable '.[bench]'
	@touch $@

bench: bench-kernels ## every benchmark; leave the machine alone meanwhile

bench-kernels: $(VENV)/.installed-bench ## the CPU kernel against eager, torch.compile, ONNX Runtime, OpenVINO
	$(BIN)/python -m bench.kernels --plot docs/img/kernels.svg

lint: install-dev ## ruff, mypy --strict, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@find kernels service bench -name '*.cpp' -o -name '*.hpp' -o -name '*.h' | xargs --no-run-if-empty clang-format --dry-run -Werror

format: install-dev ## rewrite the code in the house style
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
	@find kernels service bench -name '*.cpp' -o -name '*.hpp' -o -name '*.h' | xargs --no-run-if-empty clang-format -i

check-cuda: install-dev ## compile the CUDA kernels for every architecture, no GPU needed
	$(BIN)/python -m kernels.cuda.check

test-gpu: install-dev ## the tests that need a GPU, with speed against eager
	$(BIN)/python -m pytest -m gpu -s

proto: install-dev ## regenerate protos/*_pb2*
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. protos/*.proto

clean: ## remove what was built
	rm -rf build $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
