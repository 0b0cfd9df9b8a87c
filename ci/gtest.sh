#!/bin/sh
# Run UCM's C++ tests as `make gtest` built them: those of the stores and of what they share in a plain build. Under a
# sanitizer only PosixStore's and the shared ones, since suppressions would be needed for code outside the series.
# A second word: only the stores' tests that this filter of gtest names.
set -eu
cd "$(dirname "$0")/.."
variant=${1:-release}
case $variant in
    release) folder=build/cmake stores='*' ;;
    debug) folder=build/cmake-debug stores='*' ;;
    *) folder=build/cmake-$variant stores='UCPosix*' ;;
esac
scratch=$(mktemp -d)
chmod 755 "$scratch"  # one test reads as another user
trap 'rm -rf "$scratch"' EXIT
programs=$PWD/$folder/ucm
cd "$scratch"
export TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1" UBSAN_OPTIONS=print_stacktrace=1
"$programs/store/test/ucmstore.test" --gtest_brief=1 --gtest_filter="${2:-$stores}"
[ $# -lt 2 ] || exit 0
shared() { "$programs/shared/test/ucmshared.test" --gtest_brief=1 --gtest_filter="$1" 2>&1; }
late='UCThreadPoolTest.TimeoutDetection'
# Not UCLoggerPerfTest: two loops race each other there, and upstream's own code loses on a busy machine.
shared "-UCLoggerPerfTest.*:$late"
# It must see a task in a window of 10 ms, which it misses on such a machine, upstream's too: three tries, none after a
# sanitizer's report.
for try in 1 2 3; do
    ! shared "$late" >try.txt || break
    cat try.txt
    if [ $try = 3 ] || grep -q 'Sanitizer:\|runtime error:' try.txt; then exit 1; fi
done
cat try.txt
