#!/bin/sh
# Build every point of the applied series with UCM's own C++ tests and run PosixStore's: each patch must stand on those
# before it. Not part of CI (about a minute a point on two cores). Usage: ci/bisect.sh [checkout]
set -eu
cd "$(dirname "$0")/.."
ucm=$(cd "${1:-build/ucm}" && pwd)
point=$PWD/build/bisect/ucm
git -C "$ucm" worktree prune
[ -e "$point" ] || git -C "$ucm" worktree add --quiet --detach "$point" refs/worktree/ucm-hicache/base
failed=0
for commit in $(git -C "$ucm" rev-list --reverse refs/worktree/ucm-hicache/base..refs/worktree/ucm-hicache/tip); do
    git -C "$point" checkout --quiet "$commit"
    title=$(git -C "$point" show -s --format=%s)
    log=build/bisect/$(git -C "$point" rev-parse --short HEAD).log
    if "${PYTHON:-python3}" scripts/build.py --ucm "$point" --out build/bisect --variant debug --gtest --only native \
        >"$log" 2>&1 && (cd build/bisect && cmake-debug/ucm/store/test/ucmstore.test --gtest_brief=1 \
        --gtest_filter='UCPosix*') >>"$log" 2>&1; then
        echo "ok      $title"
    else
        echo "FAILED  $title: read $log"
        failed=1
    fi
done
git -C "$ucm" worktree remove --force "$point"
exit "$failed"
