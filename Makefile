# Every target is one line that calls scripts/ or pytest; `make help` lists them.
PYTHON ?= python3
UCM    ?=
TO     ?=
SANITIZE ?=
VARIANT ?= $(or $(SANITIZE),release)
SGLANG ?=
TESTS  ?=
CANARY ?=
RECORD ?=
V      ?=
export V

checkout = $(if $(UCM),--ucm "$(UCM)")
venv     = build/venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help apply unapply status verify refresh rebase rebase-continue rebase-abort
.PHONY: build demo test matrix gtest conformance bisect lint clean

help:  ## list targets and variables
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | sort | awk -F'\t' '{printf "  %-16s %s\n", $$1, $$2}'
	@echo "variables: UCM=DIR a UCM checkout (default build/ucm, fetched) | VARIANT=release|debug|asan|tsan (or SANITIZE=asan|tsan) with build | SGLANG=, TESTS=, CANARY=1, RECORD=1 with matrix | V=1 tracebacks"

apply:  ## put the series onto UCM, all or nothing
	@$(PYTHON) scripts/apply.py $(checkout)

unapply:  ## take the series off again
	@$(PYTHON) scripts/unapply.py $(checkout)

status:  ## show base, patches and overlay files of UCM
	@$(PYTHON) scripts/status.py $(checkout)

verify:  ## check grammar, headers, owners, and the byte-exact export
	@$(PYTHON) scripts/verify.py

refresh:  ## write patches/ and ucm_overlay/ anew from the patched branch
	@$(PYTHON) scripts/refresh.py $(checkout)

rebase:  ## put the series onto another commit of UCM: TO=REF
	@$(PYTHON) scripts/rebase.py $(checkout) $(if $(TO),--to "$(TO)")

rebase-continue:  ## go on after a conflict was solved
	@$(PYTHON) scripts/rebase.py $(checkout) --continue

rebase-abort:  ## give the rebase up
	@$(PYTHON) scripts/rebase.py $(checkout) --abort

build: | prepared  ## compile the patched UCM for the CPU; build/tree and build/venv
	@$(PYTHON) scripts/build.py $(checkout) --variant $(VARIANT)

demo: build  ## store DeepSeek V4's six pools, read them back in another process
	@$(venv) scripts/demo.py

test: build build/base/tree  ## tool, store and connector tests, on the real store and real pools
	@$(venv) -m pytest tests/tools
	@$(venv) -m pytest tests/store
	@$(venv) -m pytest tests/hicache

matrix: build  ## the connector on every pinned SGLang; SGLANG=newest or 0.5.22,0.5.16; TESTS=contract
	@$(venv) scripts/matrix.py $(if $(CANARY),--canary) $(if $(RECORD),--record) \
		--sglang "$(SGLANG)" --tests "$(TESTS)"

# The unpatched base, built once: what it wrote must still be read, and the other way round.
build/base/tree: UPSTREAM
	@$(PYTHON) scripts/build.py --ucm "$$($(PYTHON) scripts/_pin.py)" --out build/base --only native
	@touch $@

gtest: | prepared  ## UCM's own C++ tests of the store; VARIANT=asan or tsan for sanitizers
	@$(PYTHON) scripts/build.py $(checkout) --variant $(VARIANT) --gtest
	@ci/gtest.sh $(VARIANT)

conformance: | prepared  ## the store's Python tests; VARIANT=asan or tsan for sanitizers
	@$(PYTHON) scripts/build.py $(checkout) --variant $(VARIANT)
	@ci/conformance.sh $(VARIANT)

bisect: | prepared  ## build every point of the series and run its C++ tests; slow
	@ci/bisect.sh $(if $(UCM),"$(UCM)")

lint:  ## black, isort, ruff, codespell, clang-format at UCM's versions
	@ci/lint.sh

clean:  ## remove everything that was fetched and built
	rm -rf build out

.PHONY: prepared
prepared:
	@$(PYTHON) scripts/apply.py $(checkout) --if-needed
