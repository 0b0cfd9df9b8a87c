"""The pages keep what they promise: commands run, links and paths lead somewhere, log lines have rows."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from series_project import REPOSITORY, environment, git

BUILT = REPOSITORY / "build" / "tree" / "ucm"
OPERATOR = REPOSITORY / "docs" / "operator.md"
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]
PAGES += sorted((REPOSITORY / "docs").glob("*.md"))
OVERLAY_PAGES = sorted((REPOSITORY / "ucm_overlay").rglob("*.md"))
ALL_PAGES = [*PAGES, *OVERLAY_PAGES, REPOSITORY / "ci/gpu/README.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)

# Make targets that .ci/run does not run: who does.
MADE_BY = {
    "rebase": "tests/tools/test_rebase.py::test_a_lines_moved",
    "rebase-continue": "tests/tools/test_rebase.py::test_continue_needs_a_solved_conflict",
    "pr": "tests/tools/test_pr.py::test_a_topic_that_stands_alone",
    "verify BUILD=1": ".github/workflows/ci.yml::verify BUILD=1",
}
# What a make command leaves behind that the page's next git commands need.
LEAVES = {
    "make rebase": "git -C ~/ucm branch hicache-v2"
    " && git -C ~/ucm worktree add -q --detach $PWD/build/rebase",
    "make pr": "git clone -q https://github.com/ModelEngine-Group/unified-cache-management.git"
    " ~/ucm && git -C ~/ucm branch pr-store-api && git -C ~/ucm remote add fork ~/fork.git",
}
# Named in the pages, and in no checkout: UCM's repository has it, its sdist not; make bench writes it.
ELSEWHERE = {".github/CODEOWNERS", "results.md"}
# The small model with which a recipe is resolved, and the page that SGLang must come to.
RECIPES = {
    "gpt-oss": ("swa", 64),
    "Qwen3-Next": ("gdn", 64),
    "Falcon-H1": ("mamba2", 64),
    "DeepSeek-V3.2": ("dsa", 64),
    "DeepSeek-V4": ("dsv4", 256),
}


LAUNCH = "python -m sglang.launch_server "
TOOLS = "python -m ucm.integration.sglang.hicache "


def commands(page: Path, kind="") -> list[str]:
    """Each `$ command` of the page's console blocks that starts so, in order."""
    blocks = [
        text for name, text in FENCE.findall(page.read_text()) if name == "console"
    ]
    found = [one for text in blocks for one in re.split(r"^\$ ", text, flags=re.M)[1:]]
    return [one for one in found if one.startswith(kind)]


def words_of(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", " "), comments=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_command_is_of_a_kind_that_is_run(page):
    kinds = ("make ", "git ", LAUNCH, TOOLS)
    strangers = [one for one in commands(page) if not one.startswith(kinds)]
    assert strangers == [], "nobody runs these: write them a test here"


@pytest.mark.parametrize(
    "page", [p for p in PAGES if commands(p, "make ")], ids=lambda p: p.stem
)
def test_make_commands_are_run_by_ci_or_by_a_test(page):
    ci = (REPOSITORY / ".ci/run").read_text()
    goals = [" ".join(words_of(one)[1:]) for one in commands(page, "make ")]
    targets = [
        target
        for goal in goals
        for target in ([goal] if goal in MADE_BY else goal.split())
        if goal in MADE_BY or "=" not in target
    ]
    for target in targets:
        if re.search(rf"make {target}$|make {target} ", ci, re.M):
            continue
        assert target in MADE_BY, f"{target}: neither .ci/run nor a test runs it"
        path, _, name = MADE_BY[target].partition("::")
        assert name in (REPOSITORY / path).read_text()


@pytest.mark.parametrize(
    "page", [p for p in PAGES if commands(p, "git ")], ids=lambda p: p.stem
)
def test_git_commands_run(page, tmp_path):
    """One after the other, as written, with a home and an UCM of the test's own."""
    home, project = tmp_path / "home", tmp_path / "project"
    for folder in (home, *(project / n for n in ("patches", "ucm_overlay", "docs"))):
        folder.mkdir(parents=True)
    upstream = home / "unified-cache-management.git"
    for bare in (upstream, home / "fork.git"):
        git(tmp_path, "init", "-q", "--bare", "-b", "develop", str(bare))
    git(project, "init", "-q")
    for file in ("UPSTREAM", "README.md"):
        (project / file).write_text(f"{file}\n")
    first = git(project, "commit-tree", "-m", "x", git(project, "write-tree"))
    git(project, "push", "-q", str(upstream), f"{first}:refs/heads/develop")
    (home / ".gitconfig").write_text(
        f'[url "{home}/"]\ninsteadOf = https://github.com/ModelEngine-Group/\n'
        "[user]\nname = Ada\nemail = ada@example.invalid\n"
    )
    env = environment(home, GIT_EDITOR="echo message >")
    for command in commands(page):
        leaves = [v for k, v in LEAVES.items() if command.startswith(f"{k} ")]
        text = command if command.startswith("git ") else "".join(leaves)
        done = subprocess.run(
            ["bash", "-c", text], cwd=project, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{text}\n{done.stderr}"


# Reads a list of argument lists; prints what SGLang makes of each, on a Hopper GPU if it had one.
RESOLVE = """
import json, sys
import torch
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.runtime_context import override_platform
from sglang.srt.server_args import prepare_server_args
from ucm.integration.sglang.hicache_config import load_config

NAMES = ("enable_hierarchical_cache", "hicache_mem_layout", "hicache_io_backend",
         "hicache_storage_backend", "page_size")
torch.cuda.get_device_capability = lambda *_: (9, 0)
with override_platform(is_cuda=True, is_sm90=True):
    for words in json.load(sys.stdin):
        arguments = prepare_server_args([*words, "--device", "cuda"])
        arguments.resolve_once()
        view = resolving_view(arguments)
        text = view.hicache_storage_backend_extra_config
        extra, *_ = HybridCacheController.parse_storage_backend_extra_config(text)
        load_config(type("Config", (), {"extra_config": extra}))
        print("RESOLVED", json.dumps({name: getattr(view, name) for name in NAMES}))
"""


def recipe(page: Path, command: str, folder: Path) -> tuple[list[str], int]:
    """The server's arguments, with a small model and a folder of the test's own, and the page size."""
    words = words_of(command)
    model = words[words.index("--model-path") + 1]
    small, tokens = next(v for k, v in RECIPES.items() if k in model)
    before = page.read_text().partition(command)[0]
    blocks = [text for kind, text in FENCE.findall(before) if kind == "json"]
    folder.mkdir()
    (folder / "extra.json").write_text(
        "".join(blocks[-1:]).replace("/mnt/ucm", str(folder))
    )
    swaps = {
        model: str(REPOSITORY / "ci/gpu/models" / small),
        "@/etc/ucm-hicache.json": f"@{folder}/extra.json",
    }
    return [swaps.get(w, w).replace("/mnt/ucm", str(folder)) for w in words[3:]], tokens


def test_launch_recipes_mean_to_sglang_what_the_page_says(tmp_path):
    found = [(p, c) for p in [*PAGES, *OVERLAY_PAGES] for c in commands(p, LAUNCH)]
    recipes = [recipe(*one, tmp_path / str(number)) for number, one in enumerate(found)]
    assert len(recipes) >= 1 + len(RECIPES)
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE],
        input=json.dumps([words for words, _ in recipes]),
        env={**os.environ, "PYTHONPATH": str(BUILT.parent)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    resolved = re.findall(r"^RESOLVED (.*)$", done.stdout, re.M)
    assert [json.loads(one) for one in resolved] == [
        {
            "enable_hierarchical_cache": True,
            "hicache_mem_layout": "page_first",
            "hicache_io_backend": "kernel",
            "hicache_storage_backend": "dynamic",
            "page_size": tokens,
        }
        for _, tokens in recipes
    ]


def test_tool_commands_run(tmp_path):
    """On stores without blocks: 1 is a finding, 2 would be a call that is wrong."""
    for name in ("ucm", "ucm-a", "ucm-b"):
        (tmp_path / name / ".layout").mkdir(parents=True)
    page = OPERATOR.read_text()
    extra = next(text for kind, text in FENCE.findall(page) if kind == "json")
    (tmp_path / "extra.json").write_text(extra.replace("/mnt", str(tmp_path)))
    for command in [c for p in [*PAGES, *OVERLAY_PAGES] for c in commands(p, TOOLS)]:
        here = command.replace("/mnt", str(tmp_path)).replace(
            "/etc/ucm-hicache", "extra"
        )
        done = subprocess.run(
            [sys.executable, *words_of(here)[1:]],
            env={**os.environ, "PYTHONPATH": str(BUILT.parent)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        told = f"{command}\n{done.stdout}{done.stderr}"
        assert done.returncode in (0, 1) and done.stdout, told
        assert "Traceback" not in done.stderr, told


@cache
def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text()))
    for link in links:
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@cache
def known_files() -> list[str]:
    """Every file of the repository, and of UCM with the series."""
    ours = git(REPOSITORY, "ls-files", "-co", "--exclude-standard").splitlines()
    theirs = [str(p.relative_to(BUILT.parent)) for p in BUILT.rglob("*.*")]
    return [f"/{path}" for path in [*ours, *theirs]]


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_paths_in_backticks_exist(page):
    """Whole paths, and file names on their own; what is built or written is left out."""
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text()))
    sources = re.compile(r"[\w.][\w./-]*\.(py|cc|h|c|sh|md|toml|ini|txt|patch)")
    folders = re.compile(
        r"(\.ci|\.github|ci|docs|patches|scripts|tests|ucm_overlay|ucm)(/[\w.-]+)+/?"
    )
    lost = []
    for span in spans:
        path = span.split("::")[0].split(" ")[0]
        if path in ELSEWHERE or path.startswith(("build/", "out/")):
            continue
        if not (sources.fullmatch(path) or folders.fullmatch(path)):
            continue
        tail = f"/{path.strip('/')}"
        if not any(file.endswith(tail) or f"{tail}/" in file for file in known_files()):
            lost.append(span)
    assert lost == []


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_make_targets_named_in_text_exist(page):
    targets = set(
        re.findall(r"^([a-z0-9-]+):(?!=)", (REPOSITORY / "Makefile").read_text(), re.M)
    )
    spans = re.findall(r"`make ([^`]+)`", FENCE.sub("", page.read_text()))
    words = {
        word
        for span in spans
        for word in span.split()
        if re.fullmatch(r"[a-z0-9-]+", word)
    }
    assert words - targets == set()


def python_lines() -> list[str]:
    """The format of every warning and error of the connector, %s and the like as dots."""
    lines = []
    for path in sorted((BUILT / "integration" / "sglang").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                who, what = node.func.value, node.func.attr
                levels = ("warning", "error", "exception", "critical")
                if isinstance(who, ast.Name) and who.id == "logger" and what in levels:
                    text = getattr(node.args[0], "value", None)
                    assert isinstance(
                        text, str
                    ), f"{path.name}:{node.lineno}: not a constant"
                    lines.append(re.sub(r"%[-.\d]*[sdrfx]", "...", text))
    return lines


def native_lines() -> list[str]:
    lines = []
    for path in sorted((BUILT / "store/posix/cc").iterdir()):
        found = re.findall(r'UC_(?:WARN|ERROR)\(\s*((?:"[^"]*"\s*)+)', path.read_text())
        lines += [
            re.sub(r"\{[^}]*\}", "...", "".join(re.findall(r'"([^"]*)"', f)))
            for f in found
        ]
    return lines


def test_each_log_line_has_a_row_in_the_operators_page():
    cells = re.findall(r"^\| (`.*?) \| ", OPERATOR.read_text(), re.M)
    rows = [span for cell in cells for span in re.findall(r"`([^`]+)`", cell)]
    lines = [*python_lines(), *native_lines()]
    assert len(lines) > 20
    missing = []
    for line in dict.fromkeys(lines):
        words = [re.escape(part) for part in line.split("...")]
        assert len(line.replace("...", "")) > 8, f"{line!r} says nothing of its own"
        if not any(re.fullmatch(".*".join(words), row) for row in rows):
            missing.append(line)
    assert missing == [], "docs/operator.md has no row for these"


def test_the_architecture_page_has_every_file_of_the_overlay():
    """By its name, its other half's (.h, .cc), or that of its folder."""
    text = (REPOSITORY / "docs/architecture.md").read_text()
    lost = [
        path
        for path in (REPOSITORY / "ucm_overlay/ucm").rglob("*.*")
        if path.suffix in (".py", ".cc", ".h")
        and "test" not in path.parts
        and f"`{path.stem}." not in text
        and f"/{path.stem}." not in text
        and f"`{path.parent.name}/`" not in text
    ]
    assert lost == []


def test_the_readme_counts_the_series():
    topics = [
        re.search(r"^Topic: (.*)$", patch.read_text(), re.M)[1]
        for patch in (REPOSITORY / "patches").glob("*.patch")
    ]
    connector = topics.count("hicache-v2")
    text = " ".join((REPOSITORY / "README.md").read_text().split())
    stores = len(topics) - connector
    assert f"{len(topics)} patches: {stores} for the stores" in text
    assert f"{connector} for the connector" in text
