#!/bin/sh
# Run UCM's C++ tests as `make gtest` built them: all of the store's in a plain build, PosixStore's under a sanitizer,
# since suppressions would be needed for code outside the series.
set -eu
cd "$(dirname "$0")/.."
variant=${1:-release}
case $variant in
    release) folder=build/cmake filter='*' ;;
    debug) folder=build/cmake-debug filter='*' ;;
    *) folder=build/cmake-$variant filter='UCPosix*' ;;
esac
scratch=$(mktemp -d)
chmod 755 "$scratch"  # one test reads as another user
trap 'rm -rf "$scratch"' EXIT
program=$PWD/$folder/ucm/store/test/ucmstore.test
cd "$scratch"
TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1" UBSAN_OPTIONS=print_stacktrace=1 \
    "$program" --gtest_brief=1 --gtest_filter="$filter"
