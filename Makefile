# Every target is one line that calls scripts/ or pytest; `make help` lists them.
PYTHON ?= python3
UCM    ?=
TO     ?=
TOPIC  ?=
ISSUE  ?=
DRY    ?=
BUILD  ?=
SANITIZE ?=
SHORT  ?=
PUBLISH ?=
ONLY   ?=
SEED   ?=
SIZE   ?=
SKIP   ?=
VARIANT ?= $(or $(SANITIZE),release)
SGLANG ?=
TESTS  ?=
CANARY ?=
RECORD ?=
V      ?=
PLAN   ?= all
export V

checkout = $(if $(UCM),--ucm "$(UCM)")
venv     = build/venv/bin/python
gpu_sglang = $(or $(SGLANG),0.5.16)

.DEFAULT_GOAL := help
.PHONY: help apply unapply status verify refresh rebase rebase-continue rebase-abort
.PHONY: build demo test bench soak drift matrix gtest conformance pr lint clean gpu-package gpu-e2e gpu-tables

help:  ## list targets and variables
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | sort | awk -F'\t' '{printf "  %-16s %s\n", $$1, $$2}'
	@echo "variables: UCM=DIR a UCM checkout (default build/ucm, fetched) | VARIANT=release|debug|asan|tsan (or SANITIZE=asan|tsan) with build | SGLANG=, TESTS=, CANARY=1, RECORD=1 with matrix | SGLANG=, PLAN=all|exact|two-ranks|clock with gpu-* | TO=REF | TOPIC= ISSUE= DRY=1 with pr | BUILD=1 with verify | V=1 tracebacks"

apply:  ## put the series onto UCM, all or nothing
	@$(PYTHON) scripts/apply.py $(checkout)

unapply:  ## take the series off again
	@$(PYTHON) scripts/unapply.py $(checkout)

status:  ## show base, patches and overlay files of UCM; TO=REF: also what that upstream has
	@$(PYTHON) scripts/status.py $(checkout) $(if $(TO),--to="$(TO)")

verify:  ## check grammar, headers, owners, the byte-exact export; BUILD=1 builds and tests every point, slow
	@$(PYTHON) scripts/verify.py
	@$(if $(BUILD),$(PYTHON) scripts/apply.py --if-needed && $(PYTHON) scripts/build.py --only venv && $(PYTHON) scripts/prove.py)

refresh:  ## write patches/ and ucm_overlay/ anew from the patched branch
	@$(PYTHON) scripts/refresh.py $(checkout)

rebase:  ## move the series and its pin to another commit of UCM: TO=REF
	@$(PYTHON) scripts/rebase.py $(checkout) --to="$(TO)"

rebase-continue:  ## go on after a conflict was solved
	@$(PYTHON) scripts/rebase.py --continue

rebase-abort:  ## give the rebase up
	@$(PYTHON) scripts/rebase.py --abort

pr:  ## one topic as a branch on TO=REF and its pull request's text: TOPIC=NAME; DRY=1 changes nothing
	@$(PYTHON) scripts/pr.py $(checkout) --topic="$(TOPIC)" $(if $(TO),--to="$(TO)") $(if $(ISSUE),--issue="$(ISSUE)") $(if $(DRY),--dry-run)

build: | prepared  ## compile the patched UCM for the CPU; build/tree and build/venv
	@$(PYTHON) scripts/build.py $(checkout) --variant $(VARIANT)

demo: build  ## store DeepSeek V4's six pools, read them back in another process
	@$(venv) scripts/demo.py

test: build build/base/tree  ## tool, store and connector tests, on the real store and real pools
	@$(venv) -m pytest -n auto --maxprocesses 4 tests/tools
	@$(venv) -m pytest tests/store
	@$(venv) -m pytest tests/hicache
	@$(venv) -m pytest tests/bench
	@$(venv) -m pytest tests/reliability

bench: build build/base/tree build/bench/site  ## how fast it is, next to the kernel and others; SHORT=1 for CI, PUBLISH=1 into docs/
	@$(venv) tests/bench/run.py $(if $(SHORT),--short) $(if $(PUBLISH),--publish)

build/bench/site: ci/requirements/bench.txt | build
	@rm -rf $@
	@$(venv) -m pip install -q --disable-pip-version-check --no-deps --target $@ -r $<
	@touch $@

soak: | prepared  ## crashes, races, faults, fuzz, suites, a long run; SHORT=1 for CI, ONLY="crash,long run", SEED=, PUBLISH=1 into docs/
	@$(PYTHON) scripts/build.py $(checkout) --variant $(VARIANT) --gtest
	@ci/conformance.sh $(VARIANT) tests/reliability/run.py $(if $(SHORT),--short) $(if $(PUBLISH),--publish) \
		$(if $(ONLY),--only "$(ONLY)") $(if $(SEED),--seed $(SEED)) $(if $(SIZE),--size '$(SIZE)') $(if $(SKIP),--skip "$(SKIP)")

drift: build  ## move the whole series onto UCMs that drifted, build and test the results; minutes
	@$(venv) -m pytest tests/drift

matrix: build  ## the connector on every pinned SGLang; SGLANG=newest or 0.5.22,0.5.16; TESTS=contract
	@$(venv) scripts/matrix.py $(if $(CANARY),--canary) $(if $(RECORD),--record) \
		--sglang "$(SGLANG)" --tests "$(TESTS)"

# The unpatched base, built once: what it wrote must still be read, and the other way round.
build/base/tree: UPSTREAM
	@$(PYTHON) scripts/build.py --ucm "$$($(PYTHON) scripts/_pin.py)" --out build/base --only native
	@touch $@

gtest: | prepared  ## UCM's own C++ tests of the store and the shared parts; VARIANT=asan or tsan for sanitizers
	@$(PYTHON) scripts/build.py $(checkout) --variant $(VARIANT) --gtest
	@ci/gtest.sh $(VARIANT)

conformance: | prepared  ## the store's Python tests; VARIANT=asan or tsan for sanitizers
	@$(PYTHON) scripts/build.py $(checkout) --variant $(VARIANT)
	@ci/conformance.sh $(VARIANT)

gpu-package: | prepared  ## pack what a GPU machine without network needs: SGLANG=0.5.16
	@$(PYTHON) ci/gpu/pack.py --sglang $(gpu_sglang)

gpu-e2e:  ## serve models on the GPU of this machine and check what comes back from disk; ci/gpu/README.md
	@test -f build/gpu/package/$(gpu_sglang).json || $(MAKE) --no-print-directory gpu-package
	@$(PYTHON) ci/gpu/run.py --sglang $(gpu_sglang) --plan $(PLAN)

gpu-tables:  ## write docs/gpu-tables.md anew from docs/data/gpu
	@$(PYTHON) ci/gpu/report.py docs/data/gpu/*.jsonl.gz --page docs/gpu-tables.md

lint:  ## black, isort, ruff, codespell, clang-format at UCM's versions
	@ci/lint.sh

clean:  ## remove everything that was fetched and built
	@test ! -e build/rebase || { echo "clean: REFUSED  a rebase is open in build/rebase; next: make rebase-continue, or make rebase-abort" >&2; exit 3; }
	rm -rf build out

.PHONY: prepared
prepared:
	@$(PYTHON) scripts/apply.py $(checkout) --if-needed
