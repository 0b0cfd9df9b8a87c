"""Engines in processes of their own, and one case's steps written down as they happen."""

import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import blocks
from models import Model

HERE = Path(__file__).resolve().parent
START_S, ANSWER_S = 330, 240


class OutOfTime(Exception):
    """The run's own limit is near; what was recorded so far is kept."""


class EngineDied(Exception):
    pass


@dataclass(frozen=True)
class Lab:
    """Where engines run. paths: folders for PYTHONPATH; deadline: time.monotonic()."""

    python: str
    paths: tuple[str, ...]
    work: Path
    results: Path
    deadline: float

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def environment(self, more: dict) -> dict:
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(self.paths),
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "SGLANG_IS_FLASHINFER_AVAILABLE": "0",
            # Multicast over NVLink may take GPUs out of service on shared hosts.
            "NCCL_NVLS_ENABLE": "0",
            "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
            "NVSHMEM_DISABLE_NVLS": "1",
            **more,
        }


_lock = threading.Lock()


def record(lab: Lab, **row) -> None:
    line = json.dumps(row) + "\n"
    with _lock, lab.results.open("a") as file:
        file.write(line)


class Engine:
    """A worker process with one engine in it."""

    def __init__(self, lab: Lab, name: str, arguments: dict, environment: dict):
        self._lab, self.name = lab, name
        folder = lab.work / name
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder.with_suffix(".log")
        receive, send = os.pipe()
        command = [lab.python, HERE / "worker.py", str(send), json.dumps(arguments)]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(send,),
                cwd=folder,
                env=lab.environment(environment),
                start_new_session=True,
                text=True,
            )
        os.close(send)
        self._answers = os.fdopen(receive)
        try:
            self.started = self._answer(START_S)
        except BaseException:
            self.close()
            raise

    def generate(self, ids: list[int], new_tokens: int) -> dict:
        return self._ask(do="generate", ids=ids, new_tokens=new_tokens)

    def flush(self) -> None:
        if not self._ask(do="flush")["flushed"]:
            raise EngineDied(f"{self.name}: the caches could not be flushed")

    def _ask(self, **order) -> dict:
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer(ANSWER_S)

    def _answer(self, seconds: float) -> dict:
        seconds = min(seconds, self._lab.left())
        if seconds <= 0 or not select.select([self._answers], [], [], seconds)[0]:
            raise OutOfTime(f"{self.name}: no answer in {seconds:.0f} s")
        line = self._answers.readline()
        answer = json.loads(line) if line else {"error": "it ended without a word"}
        if "error" in answer:
            raise EngineDied(f"{self.name}: {answer['error']}; see {self.log.name}")
        return answer

    def close(self) -> None:
        """Ask it to end, then end its whole process group."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._process.stdin.write('{"do": "end"}\n')
            self._process.stdin.close()
            self._process.wait(min(20, max(1, self._lab.left())))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._answers.close()


class Case:
    """One model on one folder: engines come and go, steps are recorded with what moved."""

    def __init__(self, lab: Lab, model: Model, name: str, backend="ucm", **arguments):
        self.lab, self.model, self.name, self.backend = lab, model, name, backend
        self.root = lab.work / f"{name}-store"
        self.copy = lab.work / f"{name}-copy"
        self.stats = lab.work / f"{name}-stats"
        self.spoil = lab.work / f"{name}-spoil"
        for folder in (self.root, self.stats):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        self._arguments = arguments
        self._engine: Engine | None = None
        self.life = 0

    def start(self) -> None:
        self.life += 1
        arguments = self.model.arguments(**self._arguments, **self._storage())
        environment = {
            **self.model.environment,
            "GPU_E2E_STATS": str(self.stats),
            "GPU_E2E_SPOIL": str(self.spoil),
            "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(self.root),
        }
        begun = time.monotonic()
        self._engine = Engine(self.lab, self.name, arguments, environment)
        record(
            self.lab,
            case=self.name,
            model=self.model.name,
            step="start",
            life=self.life,
            seconds=time.monotonic() - begun,
            version=self._engine.started["version"],
        )

    def _storage(self) -> dict:
        if self.backend == "file":
            return {"hicache_storage_backend": "file"}
        extra = {
            "backend_name": "ucm",
            "module_path": "counting_store",
            "class_name": "CountingStore",
            "interface_v1": 1,
            "kv_connector_extra_config": {
                "ucm_connector_name": "UcmPipelineStore",
                "ucm_connector_config": {"storage_backends": str(self.root)},
            },
        }
        return {
            "hicache_storage_backend": "dynamic",
            "hicache_storage_backend_extra_config": json.dumps(extra),
        }

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def moved(self) -> Counter:
        """What this folder's engines have moved so far: "<rank> <pool> <op> <unit>"."""
        total: Counter = Counter()
        for path in self.stats.glob("counts-*.json"):
            rank = path.name.split("-")[1]
            for name, amount in json.loads(path.read_text()).items():
                total[f"{rank} {name}"] += amount
        return total

    def step(self, step: str, ids: list[int], new_tokens=48, **more) -> dict:
        before = self.moved()
        answer = self._engine.generate(ids, new_tokens)
        moved = self.moved()
        moved.subtract(before)
        row = {
            "case": self.name,
            "model": self.model.name,
            "step": step,
            "life": self.life,
            "tokens": len(ids),
            **answer,
            "moved": {name: n for name, n in moved.items() if n},
            **more,
        }
        record(self.lab, **row)
        return row

    def note(self, step: str, **row) -> None:
        record(
            self.lab,
            case=self.name,
            model=self.model.name,
            step=step,
            life=self.life,
            **row,
        )

    def settle(self, quiet_s=1.2) -> None:
        """Wait until no new block has appeared for a while."""
        last, since = None, time.monotonic()
        while time.monotonic() - since < quiet_s:
            now = self._files()
            if now != last:
                last, since = now, time.monotonic()
            if self.lab.left() <= 0:
                raise OutOfTime(f"{self.name}: still writing")
            time.sleep(0.2)

    def _files(self) -> object:
        if self.backend == "file":
            return len(os.listdir(self.root))
        return blocks.counts(self.root)

    def wipe(self) -> None:
        """An empty disk under a running engine, and nothing in its caches."""
        self.settle(0.4)
        self.forget()
        blocks.delete(self._stored())

    def uncache(self) -> None:
        """Nothing of the disk's content in the page cache."""
        blocks.drop_cached(self._stored())

    def _stored(self) -> list[Path]:
        if self.backend == "file":
            return [path for path in self.root.iterdir() if path.is_file()]
        return [path for found in blocks.listing(self.root).values() for path in found]

    def forget(self) -> None:
        """Flush device and host; the disk keeps what it has."""
        self._engine.flush()

    def blocks(self, pool: str) -> list[Path]:
        return blocks.listing(self.root).get(pool, [])

    def save(self) -> None:
        blocks.save(self.root, self.copy)

    def put_back(self) -> None:
        blocks.put_back(self.root, self.copy)


def prompt(seed: object, tokens: int) -> list[int]:
    return random.Random(str(seed)).choices(range(10, 2000), k=tokens)
