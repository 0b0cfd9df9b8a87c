"""What a SGLang release says about its storage backends, read from its source by `ast`.

The result is a list of lines, so that two releases can be compared: the base class with its
parameters, enumerations, records, how a dynamic backend is made, every call that SGLang
makes to a backend, and which host pools there are.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

STORAGE = "sglang/srt/mem_cache/hicache_storage.py"
FACTORY = "sglang/srt/mem_cache/storage/backend_factory.py"
RECORDS = {
    "HiCacheStorageConfig",
    "HiCacheStorageExtraInfo",
    "PoolTransfer",
    "PoolTransferResult",
    "SidecarPoolSpec",
}
NAMES = {"PoolName", "PoolHitPolicy"}
CALLERS = ["sglang/srt/managers", "sglang/srt/mem_cache"]
PAGE_CALLS = {
    "_iter_page_tensors",
    "get_page_buffer_meta",
    "get_data_page",
    "get_dummy_flat_data_page",
    "set_from_flat_data_page",
}


@cache  # a release is compared with the one before it and the one after it
def read(source: Path) -> list[str]:
    """The interface of the release unpacked in `source`."""
    lines = set(_base(source / STORAGE)) | set(_factory(source / FACTORY))
    for folder in CALLERS:
        for file in (source / folder).rglob("*.py"):
            if "storage/" in str(file.relative_to(source)):  # the backends themselves
                continue
            tree = ast.parse(file.read_text())
            lines |= set(_backend_calls(tree)) | set(_host_pools(tree))
    return sorted(lines)


def difference(before: list[str], now: list[str]) -> list[str]:
    """Lines that came ("+ ...") and went ("- ...")."""
    came = [f"+ {line}" for line in now if line not in set(before)]
    return came + [f"- {line}" for line in before if line not in set(now)]


def _base(file: Path) -> Iterator[str]:
    for node in ast.parse(file.read_text()).body:
        if not isinstance(node, ast.ClassDef):
            continue
        if node.name == "HiCacheStorage":
            for part in node.body:
                if isinstance(part, ast.FunctionDef):
                    yield f"method {part.name}({_parameters(part)})"
        elif node.name in NAMES | RECORDS:
            kind = "name" if node.name in NAMES else "field"
            for part in node.body:
                if isinstance(part, ast.AnnAssign):
                    default = f" = {ast.unparse(part.value)}" if part.value else ""
                    yield f"{kind} {node.name}.{part.target.id}{default}"
                elif isinstance(part, ast.Assign):
                    yield f"{kind} {node.name}.{part.targets[0].id}"
                elif isinstance(part, ast.FunctionDef):
                    yield f"method {node.name}.{part.name}({_parameters(part)})"


def _parameters(function: ast.FunctionDef) -> str:
    """Parameters with their defaults; annotations are of no matter to a caller."""
    arguments = function.args
    for argument in arguments.args + arguments.kwonlyargs + arguments.posonlyargs:
        argument.annotation = None
    return ast.unparse(arguments)


def _factory(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == "_create_dynamic_backend":
            for part in ast.walk(node):
                if isinstance(part, ast.Return):
                    yield f"dynamic {ast.unparse(part.value)}"
                elif isinstance(part, ast.Constant) and str(part.value).endswith(
                    "_name"
                ):
                    yield f"dynamic needs {part.value}"


def _backend_calls(tree: ast.AST) -> Iterator[str]:
    """x.storage_backend.f(...), by what is given: the number of positions and the keywords."""
    for node in ast.walk(tree):
        function = getattr(node, "func", None)
        if not isinstance(node, ast.Call) or not isinstance(function, ast.Attribute):
            continue
        if getattr(function.value, "attr", None) == "storage_backend":
            words = ["_"] * len(node.args) + [f"{k.arg}=_" for k in node.keywords]
            yield f"call {function.attr}({', '.join(words)})"


def _host_pools(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name.endswith(
            ("PoolHost", "HostPool")
        ):
            parts = [
                part.name for part in node.body if isinstance(part, ast.FunctionDef)
            ]
            calls = sorted(PAGE_CALLS.intersection(parts))
            yield f"host pool {node.name}: {' '.join(calls) or 'no page calls of its own'}"
