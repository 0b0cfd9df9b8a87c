#!/bin/sh
# Check our own files with the tools and versions that UCM checks its own with.
# The tools live in build/lint, made from ci/requirements/lint.txt when missing; `lint.sh tools` does no more than that.
set -eu
cd "$(dirname "$0")/.."

mkdir -p build
exec 9>build/.lock-lint  # tests that need the tools run side by side
flock 9
if ! cmp -s ci/requirements/lint.txt build/lint/stamp; then
    rm -rf build/lint
    "${PYTHON:-python3}" -m venv build/lint
    build/lint/bin/pip install -q --disable-pip-version-check -r ci/requirements/lint.txt
    cp ci/requirements/lint.txt build/lint/stamp
fi
exec 9>&-
[ "${1-}" != tools ] || exit 0
PATH=$PWD/build/lint/bin:$PATH
status=0
check() {
    echo "lint: $1"
    "$@" || status=1
}

python_files=$(git ls-files -co --exclude-standard '*.py')
native_files=$(git ls-files -co --exclude-standard 'ucm_overlay/*.cc' 'ucm_overlay/*.h')
check black --quiet --check --diff $python_files
# UCM's own run sees its package in the folder it starts in; here we name it.
check isort --quiet --profile=black -p ucm --check-only --diff $python_files
check ruff check --quiet $python_files
[ -z "$native_files" ] || check clang-format --style=file:ci/clang-format --dry-run -Werror $native_files
# activ: git cuts the function name in a hunk's header.
check codespell -L activ $(git ls-files -co --exclude-standard -- ':!*.png' ':!*.jsonl')
for file in $(git ls-files -co --exclude-standard '*.sh' .ci/run); do
    check sh -n "$file"
done
[ "$status" = 0 ] && echo "lint: clean" || echo "next: black and isort rewrite the files; the rest is yours"
exit "$status"
