"""Stands in for scripts/build.py in the small project, which has nothing to compile.

A test case is a line `// TEST Fixture.Name PATH TEXT` in ucm/store/test: it passes where the
file has the text, or else fails; as a line `// CRASH ...` it crashes; `// FLAKY ... FILE` fails
until it has made that file. `// NEEDS PATH TEXT` in
a test file ends the build where the text is not there.
"""

import shutil
import sys
from pathlib import Path

PROGRAM = """#!/usr/bin/env python3
import fnmatch, os, sys
from pathlib import Path

tree, chosen = Path({tree!r}), sys.argv[1].partition("=")[2].split(":")
cases = [row.split(None, 4)[1:] for file in sorted(tree.glob("ucm/store/test/**/*.cc"))
         for row in file.read_text().splitlines() if row.startswith(("// TEST ", "// CRASH ", "// FLAKY "))]
cases = [case for case in cases if any(fnmatch.fnmatch(case[1], c) for c in chosen)]
shards, mine = (int(os.environ["GTEST_" + x]) for x in ("TOTAL_SHARDS", "SHARD_INDEX"))
cases = cases[mine::shards]
failed = []
for how, name, path, text in cases:
    print(f"[ RUN      ] {{name}}", flush=True)
    good = text in (tree / path).read_text()
    if how == "FLAKY":  # fails the first time
        good = os.path.exists(text)
        open(text, "w").close()
    if how == "CRASH" and not good:
        os.abort()
    print(f"[{{'       OK' if good else '  FAILED '}} ] {{name}}")
    failed += [] if good else [name]
print(f"[==========] {{len(cases)}} tests from 1 test suite ran. (0 ms total)")
for name in failed:
    print(f"[  FAILED  ] {{name}}")
sys.exit(bool(failed))
"""

GTEST, PYTHON = "ucmstore.test", Path(sys.executable)

CACHE = """// What CMake keeps
CMAKE_BUILD_TYPE:STRING=Debug
BUILD_UNIT_TESTS:BOOL=ON
DOWNLOAD_DEPENDENCE:BOOL=OFF
RUNTIME_ENVIRONMENT:STRING=stub
UCM_DEP_HEADERS:PATH=/somewhere
"""


if __name__ == "__main__":
    words = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
    if words.get("--only") == "venv":
        (Path(__file__).parents[1] / "build" / "venv").mkdir(exist_ok=True)
        sys.exit()
    out = Path(words["--out"])
    with open(out / "builds.txt", "a") as seen:
        seen.write("built\n")
    tree = out / "tree-debug"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(words["--ucm"], tree, ignore=shutil.ignore_patterns(".git"))
    for file in tree.glob("ucm/store/test/**/*.cc"):
        for row in file.read_text().splitlines():
            if row.startswith("// NEEDS "):
                path, text = row.split(None, 3)[2:]
                if text not in (tree / path).read_text():
                    sys.exit(1)
    program = out / "cmake-debug" / "ucm" / "store" / "test" / GTEST
    program.parent.mkdir(parents=True, exist_ok=True)
    (out / "cmake-debug" / "CMakeCache.txt").write_text(CACHE)
    program.write_text(PROGRAM.format(tree=str(tree)))
    program.chmod(0o755)
