"""Child processes: each imports one tree's ucm and serves one session of sessions.py.

They are forked from a server that has torch and SGLang loaded, and no ucm.
"""

import importlib
import logging
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
_LOADED = [
    "torch",
    "sglang.srt.server_args",
    "sglang.srt.distributed.parallel_state",
    "sglang.srt.mem_cache.hicache_storage",
    "sglang.srt.mem_cache.memory_pool_host",
    "sglang.srt.mem_cache.pool_host.mha",
    "sglang.srt.mem_cache.pool_host.mamba",
    "sglang.srt.mem_cache.pool_host.dsa",
    "sglang.srt.mem_cache.pool_host.group",
    "sglang.srt.mem_cache.pool_host.minimax_m3_nvfp4",
    "sglang.srt.mem_cache.pool_host.qsa",
]
LIMIT_S = 600


class ChildFailed(Exception):
    """A child raised; `wrong` when it found wrong bytes or a wrong answer."""

    def __init__(self, text: str, wrong: bool) -> None:
        super().__init__(text)
        self.wrong = wrong


def server():
    """The context to make children with; sets up their server on the first call."""
    os.environ.setdefault("UC_LOGGER_LEVEL", "off")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    if str(HERE) not in (os.environ.get("PYTHONPATH") or ""):
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LOADED)
    return context


def _serve(connection, tree: str, session: str) -> None:
    sys.path[:0] = [tree, str(HERE)]
    os.chdir(tempfile.gettempdir())
    logging.disable(logging.WARNING)
    try:
        module = importlib.import_module("sessions")
        found = Path(importlib.import_module("ucm").__file__)
        if Path(tree) not in found.parents:
            raise ImportError(f"ucm comes from {found}, not from {tree}")
        served = getattr(module, session)()
        connection.send(("ok", None))
    except BaseException:
        connection.send(("error", traceback.format_exc()))
        os._exit(1)
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            os._exit(0)  # the base takes seconds to destroy a store
        try:
            connection.send(("ok", getattr(served, method)(**arguments)))
        except module.Wrong as e:
            connection.send(("wrong", str(e)))
        except BaseException:
            connection.send(("error", traceback.format_exc()))


class Child:
    """send() starts a call, receive() waits for its result, call() does both."""

    def __init__(self, session: str, tree: Path) -> None:
        context = server()
        self._connection, theirs = context.Pipe()
        arguments = (theirs, str(tree), session)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._ready = False

    def ready(self) -> "Child":
        if not self._ready:
            self._ready = True
            self.receive()
        return self

    def send(self, method: str, **arguments) -> None:
        self.ready()
        self._connection.send((method, arguments))

    def receive(self):
        if not self._connection.poll(LIMIT_S):
            raise ChildFailed(f"no answer within {LIMIT_S} s", wrong=False)
        try:
            kind, value = self._connection.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            raise ChildFailed(f"died with exit code {code}", wrong=False) from None
        if kind != "ok":
            raise ChildFailed(value, wrong=kind == "wrong")
        return value

    def call(self, method: str, **arguments):
        self.send(method, **arguments)
        return self.receive()

    def close(self) -> None:
        self._connection.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def together(children: Sequence[Child], method: str, arguments: Sequence[dict]):
    """The same call in all of them at once; their results, or the first failure."""
    for child, given in zip(children, arguments, strict=True):
        child.send(method, **given)
    results, failure = [], None
    for child in children:
        try:
            results.append(child.receive())
        except ChildFailed as e:
            failure = failure or e
    if failure:
        raise failure
    return results
