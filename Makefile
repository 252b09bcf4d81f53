# The tasks of this project, from a bare clone. Requires cargo, Python 3.10 or later and a C compiler.
#
#   make demo     install into .venv, and dry-run the example on two virtual GPUs
#   make test     install into .venv, and run all tests
#   make test-exhaustive  the Python tests with all of their parameters
#   make check    check formatting, lints, types, and that generated files are current
#   make format   format everything; `make check-format` checks it, and Python's lints, in seconds
#   make generated  write all files that are generated from the code: pages, schemas, result types
#   make ages     list the pages of measurements that are older than the code they measure
#   make accuracy  run published cases on virtual GPUs that have no result yet; ACCURACY=FOLDER has the repositories; takes hours
#   make bench    measure the speed, compared with PyTorch's own tools
#   make scale    measure how time and memory grow with layers, ranks, events, files and images
#   make torture  run all soak tests and fault injection; takes hours, SCALE=0.1 for a tenth
#   make fuzz     run the fuzz targets, FUZZ_SECONDS for each
#   make properties  run all property tests with a hundred seeds; `make test` uses one
#   make parallel  compare parallel plans on 2, 4 and 8 gloo processes with one process, with faults; takes an hour
#   make models   check memory shared by processes under the ARM memory model, with loom
#   make sanitizers  run the Rust tests of unsafe code and shared memory under a nightly compiler's sanitizers
#   make mutants  mutation-test the crates that decide answers; needs cargo-mutants; takes an hour
#   make differential  compare the replay with PyTorch's own allocator, PROGRAMS random programs for each setting and release
#   make libraries  run popular training libraries on virtual GPUs; rewrites docs/libraries.md
#   make atlas    compute the largest batch of common models on each GPU; rewrites docs/atlas.md; takes hours; ATLAS_MINUTES=30 stops and resumes next time
#   make integrations  test memfit in other libraries' trainers, with the oldest and the newest supported releases
#   make shrink   test the techniques of `memfit shrink` that need further libraries, and the example of smaller models
#   make symbols  extract the kernels of PyTorch's releases, with which kernel layouts are compared; TORCH="2.15.0" for one (1 GB each)
#   make site     build the documentation as static pages in target/site/html, and check each in Chromium
#   make vscode   build the extension for VS Code, target/vscode/memfit.vsix; needs Node.js 20
#   make vscode-test  test the extension in code-server and Chromium; builds the editor from the package registry in minutes
#   make dist     build and check the distribution in dist/: wheel, sdist, stand-alone command, conda recipe
#   make arm64    build for ARM, and run scripts and the Rust tests under emulation; needs root; takes hours; ARM64=FOLDER is another folder
#   make macos    compile and link the command for macOS, which runs nothing of it; takes root; MACOS=FOLDER keeps the system
#   make dist-again  build the sdist once more in another folder: the wheel must have the same hash
#   make release-rehearsal  install the result of `make dist` from a local index, and run it
#   make dist-matrix  install and run it in fresh Debian systems, with several releases of torch and the Pythons in PYTHONS="FOLDER…"
#   make matrix   run the reference workloads with many releases of torch and Python; TORCH="2.9.1 2.15.0" for some

VENV         := .venv
PYTHON       ?= python3
FUZZ_SECONDS ?= 20
TORCH        ?=
PROGRAMS     ?= 100
SCALE        ?= 1
ACCURACY     ?= target/accuracy/mirror
ARM64        ?= target/arm64
ATLAS_MINUTES ?= inf
# In scripts/docs/. The order matters: the reference is written from the result types.
GENERATORS   := schemas results api overhead
# Three on two cores: each test waits for processes that it starts.
PYTEST_ARGS  ?= -n 3 --dist loadfile
BIN          := $(VENV)/bin
# Where Python may not write bytecode, each of a thousand processes of the tests would compile PyTorch again.
export UV_COMPILE_BYTECODE := 1
# Stamps say what was installed, so that a second run installs nothing.
STAMPS       := $(VENV)/stamps
SOURCES      := $(shell find crates python packaging -type f ! -path '*/__pycache__/*' ! -path '*/_device/*' 2>/dev/null) \
                Cargo.toml Cargo.lock pyproject.toml $(wildcard README.md LICENSE-*)

.PHONY: help demo test test-rust test-python test-exhaustive test-newest check check-format format generated ages accuracy bench scale torture fuzz properties parallel models sanitizers mutants differential libraries atlas integrations shrink site vscode vscode-test matrix symbols clean \
        dist macos dist-again dist-matrix arm64 arm64-machine release-rehearsal release-check release-upload release-page
.DELETE_ON_ERROR:

help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile

demo: $(STAMPS)/demo $(STAMPS)/memfit
	@sh scripts/demo.sh $(BIN)

test: test-rust test-python
	@sh scripts/skipped.sh

# The tests of the export surface look at the libraries that are installed with torch.
test-rust: $(STAMPS)/test
	MEMFIT_TEST_SITE_PACKAGES="$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
	    sh scripts/cargo-test.sh

test-python: $(STAMPS)/test $(STAMPS)/memfit
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-exhaustive: $(STAMPS)/test $(STAMPS)/memfit
	MEMFIT_EXHAUSTIVE=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

# Modules that a build script declares: `cargo fmt` does not find them.
GENERATED_MODULES := crates/memfit-vocabulary/src/levers/*.rs crates/memfit-vocabulary/sample/*.rs \
    crates/memfit-lint/src/rules/*.rs

format: $(STAMPS)/check
	cargo fmt --all
	rustfmt --edition 2024 $(GENERATED_MODULES)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

check-format: $(STAMPS)/check
	cargo fmt --all --check
	rustfmt --check --edition 2024 $(GENERATED_MODULES)
	$(BIN)/ruff format --check
	$(BIN)/ruff check

check: check-format $(STAMPS)/memfit
	cargo clippy --workspace --all-targets --locked -- -D warnings
	@# The features of the distributed build need cmake, which the build backend installs.
	@if command -v cmake >/dev/null 2>&1; then \
	    cargo clippy -p memfit-loader --features turbo --all-targets --locked -- -D warnings; fi
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest memfit._core --concise
	@for each in $(GENERATORS); do $(BIN)/python scripts/docs/$$each.py --check || exit 1; done
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --locked check licenses bans sources; \
	    else echo "cargo-deny is not installed: licences and sources were not checked"; fi

generated: $(STAMPS)/venv
	MEMFIT_UPDATE_DOCS=1 cargo test --locked --quiet -p memfit-cli documented
	MEMFIT_UPDATE_DOCS=1 cargo test --locked --quiet -p memfit-kernels measured
	MEMFIT_UPDATE_DOCS=1 cargo test --locked --quiet -p memfit-lint --test index
	MEMFIT_UPDATE_DOCS=1 cargo test --locked --quiet -p memfit-report
	@for each in $(GENERATORS); do $(BIN)/python scripts/docs/$$each.py || exit 1; done

ages:
	@$(PYTHON) scripts/measurements/index.py

# Two releases of torch, as most sources state them, and a third for torchtitan. mmcv without its compiled operators, next
# to the packages of 2022 that were published with it.
accuracy: requirements/accuracy.txt $(STAMPS)/memfit
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(VENV)-accuracy-2.6
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(VENV)-accuracy-2.11
	$(BIN)/uv pip install --quiet --python $(VENV)-accuracy-2.6/bin/python -r $< torch==2.6.0 torchvision==0.21.0
	$(BIN)/uv pip install --quiet --python $(VENV)-accuracy-2.11/bin/python -r $< torch==2.11.0 torchvision==0.26.0
	MMCV_WITH_OPS=0 $(BIN)/uv pip install --quiet --python $(VENV)-accuracy-2.6/bin/python --no-deps --no-build-isolation \
	    mmcv==1.7.0 mmsegmentation==0.30.0 mmaction2==0.24.1
	$(BIN)/uv pip install --quiet --python $(VENV)-accuracy-2.6/bin/python --no-deps \
	    ultralytics==8.0.166 thop==0.1.1.post2209072238 litgpt==0.5.13 jsonargparse==4.53.0
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(VENV)-accuracy-2.7
	$(BIN)/uv pip install --quiet --python $(VENV)-accuracy-2.7/bin/python torch==2.7.0 torchao==0.8.0 torchdata==0.10.1 \
	    datasets==5.2.0 tiktoken==0.14.0 blobfile==3.3.0 tabulate==0.10.0 tensorboard==2.21.0 tomli==2.5.0 numpy==2.2.6
	$(BIN)/python scripts/accuracy/run.py --mirror $(ACCURACY) \
	    --environment torchtitan=$(VENV)-accuracy-2.7/bin/python \
	    --environment 2.6=$(VENV)-accuracy-2.6/bin/python --environment 2.11=$(VENV)-accuracy-2.11/bin/python \
	    --environment openmmlab=$(VENV)-accuracy-2.6/bin/python --environment transformers=$(VENV)-accuracy-2.6/bin/python \
	    --environment ultralytics=$(VENV)-accuracy-2.6/bin/python --environment litgpt=$(VENV)-accuracy-2.6/bin/python

bench: $(STAMPS)/test $(STAMPS)/memfit
	$(BIN)/python benches/report.py

scale: $(STAMPS)/test $(STAMPS)/memfit
	$(BIN)/python scripts/scale/curves.py

torture: $(STAMPS)/test $(STAMPS)/memfit
	$(BIN)/python scripts/torture.py --scale $(SCALE)

fuzz:
	sh scripts/fuzz.sh $(FUZZ_SECONDS)

properties:
	$(PYTHON) scripts/properties.py

parallel: $(STAMPS)/test $(STAMPS)/memfit
	$(BIN)/python scripts/distributed/numerics.py --out measurements/parallel.md

models:
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/models cargo test --release --locked -p memfit-channel --lib models

sanitizers: $(STAMPS)/venv
	$(BIN)/python scripts/sanitizers/run.py

mutants: $(STAMPS)/venv
	$(BIN)/python scripts/mutants.py

# PyTorch's own allocator is the oracle, in the environments of `make matrix`; goes on where it stopped.
differential: $(STAMPS)/memfit
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/replay/differential.py --programs $(PROGRAMS)

# In an environment of its own, since each of these libraries brings many others.
libraries: $(STAMPS)/memfit
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(VENV)-libraries
	$(BIN)/uv pip install --quiet --python $(VENV)-libraries/bin/python -r requirements/libraries.txt
	$(BIN)/python scripts/tables/libraries.py --python $(VENV)-libraries/bin/python

# The same environment; goes on where it stopped.
atlas: $(STAMPS)/memfit
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(VENV)-libraries
	$(BIN)/uv pip install --quiet --python $(VENV)-libraries/bin/python -r requirements/libraries.txt
	$(BIN)/python scripts/atlas/atlas.py --python $(VENV)-libraries/bin/python --minutes $(ATLAS_MINUTES)
	$(BIN)/python scripts/atlas/atlas_page.py

# Environments of their own: the oldest and the newest releases of the trainers.
integrations: $(STAMPS)/memfit
	$(BIN)/python scripts/integrations.py

site: requirements/site.txt $(STAMPS)/test $(STAMPS)/memfit
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(VENV)-site
	$(BIN)/uv pip install --quiet --python $(VENV)-site/bin/python -r requirements/site.txt
	NO_MKDOCS_2_WARNING=1 $(VENV)-site/bin/python scripts/site/build.py
	$(BIN)/python scripts/site/check.py

vscode:
	mkdir -p target/vscode
	cd editors/vscode && npm ci --ignore-scripts && npm run package

vscode-test: vscode $(STAMPS)/test $(STAMPS)/memfit
	sh editors/vscode/test/install-editor.sh $(abspath target/vscode/editor)
	cd editors/vscode && \
	    MEMFIT_VSIX=$(abspath target/vscode/memfit.vsix) MEMFIT_EDITOR=$(abspath target/vscode/editor) \
	    MEMFIT_COMMAND=$(abspath $(BIN)/memfit) MEMFIT_PYTHON=$(abspath $(BIN)/python) \
	    MEMFIT_SHOTS=$(abspath target/vscode/shots) npm test

# Beside the environment of the tests, which the libraries for smaller models do not change.
shrink: $(STAMPS)/test $(STAMPS)/memfit
	$(BIN)/uv pip install --quiet --target $(VENV)-shrink --no-deps -r requirements/shrink.txt
	PYTHONPATH="$(CURDIR)/$(VENV)-shrink" $(BIN)/python -m pytest tests/python/test_levers_smaller.py \
	    tests/python/test_shrink_libraries.py tests/python/test_shrink_saved.py tests/python/test_example_smaller.py

symbols: $(STAMPS)/venv
	$(BIN)/python scripts/kernels/symbols.py --torch "$(TORCH)"
	MEMFIT_ACCEPT=1 cargo test -p memfit-kernels --lib --locked -- symbols
	git diff --stat -- crates/memfit-kernels/symbols

matrix: $(STAMPS)/memfit
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/tables/matrix.py $(if $(TORCH),--torch "$(TORCH)")

# In an environment of its own, so that neither zig nor the auditor is in the way of anything else.
DIST_BIN := $(VENV)-dist/bin
DIST     := dist

$(VENV)-dist/stamp: requirements/dist.txt
	$(PYTHON) -m venv $(VENV)-dist
	$(DIST_BIN)/python -m pip install --quiet -r $<
	@touch $@

dist: $(VENV)-dist/stamp
	$(DIST_BIN)/python scripts/dist/build.py --out $(DIST)
	$(DIST_BIN)/python scripts/dist/check.py $(DIST)

macos: $(VENV)-dist/stamp
	$(DIST_BIN)/python scripts/dist/macos.py $(if $(MACOS),--folder $(MACOS))

dist-again: $(VENV)-dist/stamp
	$(DIST_BIN)/python scripts/dist/again.py $(DIST)

# Looks first whether the machine has what it takes, before anything is installed for it.
arm64: arm64-machine $(STAMPS)/test $(STAMPS)/memfit $(VENV)-dist/stamp
	PATH="$(CURDIR)/$(DIST_BIN):$$PATH" $(DIST_BIN)/python scripts/arm64.py --folder $(ARM64)

arm64-machine:
	@$(PYTHON) scripts/arm/emulated.py $(ARM64)

# The example is run where `make demo` has installed PyTorch.
release-rehearsal: $(VENV)-dist/stamp
	$(DIST_BIN)/python scripts/dist/rehearse.py $(DIST) $(if $(wildcard $(BIN)/python),--torch $(BIN)/python)

dist-matrix: $(VENV)-dist/stamp
	$(DIST_BIN)/python scripts/dist/matrix.py $(DIST) $(foreach prefix,$(PYTHONS),--python $(prefix))

release-check: $(VENV)-dist/stamp
	$(DIST_BIN)/python scripts/dist/release.py check --tag "$(TAG)"

release-upload: $(VENV)-dist/stamp
	$(DIST_BIN)/python scripts/dist/release.py upload --dist $(DIST) $(if $(wildcard $(DIST)-arm),--also $(DIST)-arm)

release-page: $(VENV)-dist/stamp
	$(DIST_BIN)/python scripts/dist/release.py notes > $(DIST)/NOTES.md
	gh release create "$(TAG)" --title "memfit $(TAG)" --notes-file $(DIST)/NOTES.md \
	    $(DIST)/*.whl $(DIST)/*.tar.gz $(DIST)/SHA256SUMS $(wildcard $(DIST)-arm/*.whl $(DIST)-arm/*linux*.tar.gz)

# The tests with the newest PyTorch, whatever the requirements name.
test-newest: $(STAMPS)/test $(STAMPS)/memfit
	$(BIN)/uv pip install --quiet --python $(BIN)/python --upgrade torch torchvision
	$(BIN)/python -m pytest $(PYTEST_ARGS)

clean:
	rm -rf target $(VENV) $(VENV)-dist dist python/memfit/_device

$(STAMPS)/venv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv
	@mkdir -p $(STAMPS)
	@touch $@

# uv installs the same files as pip in a tenth of the time; where it cannot reach what pip can, pip does it.
$(STAMPS)/%: requirements/%.txt $(STAMPS)/venv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -r $< || $(BIN)/python -m pip install --quiet -r $<
	@touch $@

$(STAMPS)/memfit: $(SOURCES) $(STAMPS)/venv
	$(BIN)/python -m pip install --quiet --no-deps .
	@touch $@
