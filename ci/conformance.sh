#!/bin/sh
# Run the store's tests, or what the words after the variant name to Python, on the tree that `make build VARIANT=...`
# built: conformance.sh asan tests/reliability/run.py --short. Under a sanitizer a report ends the test's own
# process, and so fails it. No suppressions: what is not instrumented (Python, numpy) is not looked at.
set -eu
cd "$(dirname "$0")/.."
variant=${1:-release}
[ $# = 0 ] || shift
[ $# -gt 0 ] || set -- -m pytest tests/store
tree=build/tree-$variant
case $variant in
    release) tree=build/tree ;;
    debug) ;;
    *)
        # libstdc++ as well, for the sanitizer finds no exception support in Python itself.
        LD_PRELOAD=$(c++ -print-file-name="lib$variant.so"):$(c++ -print-file-name=libstdc++.so)
        # Every test's process ends by _exit, with whatever threads and memory it has then.
        TSAN_OPTIONS="halt_on_error=1 report_thread_leaks=0 die_after_fork=0 second_deadlock_stack=1"
        ASAN_OPTIONS=detect_leaks=0
        UBSAN_OPTIONS="halt_on_error=1 print_stacktrace=1"
        export LD_PRELOAD TSAN_OPTIONS ASAN_OPTIONS UBSAN_OPTIONS
        ;;
esac
UCM_TREE=$tree exec build/venv/bin/python "$@"
