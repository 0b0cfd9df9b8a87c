"""What each case does. Every step's answer is recorded; report.py compares."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import blocks
from lab import Case, Lab, prompt, record
from models import MODELS

# 12 tokens past a border of 64 and of 256: they read the restored pages, not each other.
SHORT, LONG = 23 * 256 + 12, 12000
A = prompt("a", SHORT)


def everything(lab: Lab, name: str) -> None:
    """Hits, restart, shared prefix, long prompt, bad pages and faults of one model."""
    case = Case(lab, MODELS[name], name)
    try:
        case.start()
        answer = hits(case)
        case.save()
        bad_pages(case)
        longer(case, answer)
        long_prompt(case)
        case.stop()
        case.start()
        restart(case, answer)
        case.save()
        faults(case)
    finally:
        case.stop()


def hits(case: Case, colds=2, devices=3, storages=3) -> list[int]:
    """The same prompt cold, from the device, and from disk; the answer's tokens."""
    if case.model.noisy:
        colds, devices = colds + 1, devices + 2
    for i in range(colds):
        if i:
            for found in blocks.listing(case.root).values():
                blocks.delete(found)
            case.forget()
        answer = case.step(f"cold {i}", A)["ids"]
        case.settle()
    case.note(
        "disk", pools=blocks.counts(case.root), folders=blocks.namespaces(case.root)
    )
    for i in range(devices):
        case.step(f"device {i}", A)
    for i in range(storages):
        case.forget()
        case.step(f"storage {i}", A)
    return answer


def longer(case: Case, answer: list[int]) -> None:
    """A longer prompt: first only its beginning is there, then all of it."""
    b = longer_prompt(answer)
    case.forget()
    case.step("again", A)
    case.save()
    case.step("prefix device", b)
    case.settle()
    case.put_back()
    case.forget()
    case.step("prefix storage", b)
    case.settle()
    case.step("longer device", b)
    case.forget()
    case.step("longer storage", b)


def longer_prompt(answer: list[int]) -> list[int]:
    return A + answer + prompt("b", 300)


def long_prompt(case: Case) -> None:
    ids = prompt("long", LONG)
    case.step("long cold", ids)
    case.settle()
    for i in range(3 if case.model.noisy else 1):
        case.step(f"long device {i}", ids)
    for i in range(2):
        case.forget()
        case.step(f"long storage {i}", ids)


def bad_pages(case: Case) -> None:
    """Zeros in one pool must be seen in the output, else the comparison proves nothing."""
    for pool in case.model.pools:
        case.forget()
        blocks.zero(case.blocks(pool))
        case.step(f"zero {pool}", A)
        case.settle(0.6)
        case.put_back()


def faults(case: Case) -> None:
    """Pages that are gone, cut, or vanish between lookup and read: recomputed, and stored again."""
    for pool in case.model.pools:
        for action in ("delete", "truncate", "late delete"):
            case.forget()
            if action == "late delete":
                case.spoil.write_text(f"{pool} delete")
            else:
                blocks.SPOIL[action](case.blocks(pool))
            case.step(f"{action} {pool}", A)
            if action == "late delete":
                case.note(f"spoilt {pool}", spoilt=not case.spoil.exists())
                case.spoil.unlink(missing_ok=True)
            case.settle(0.6)
            if action == "delete":
                case.forget()
                case.step(f"healed {pool}", A)
            case.put_back()


def restart(case: Case, answer: list[int]) -> None:
    for i in range(2):
        if i:
            case.forget()
        case.step(f"restart {i}", A)
    case.step("restart longer", longer_prompt(answer))
    case.step("restart long", prompt("long", LONG))


def two_ranks(lab: Lab, name: str) -> None:
    """Tensor parallelism 2: hits, a long prompt, restart."""
    model = MODELS[name]
    # Other engines make the GPUs' free memory unequal, which SGLang would refuse.
    shared = {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}
    model = replace(model, environment={**model.environment, **shared})
    parallel = {"tp_size": 2, "disable_custom_all_reduce": True}
    case = Case(lab, model, f"{name}-tp2", **parallel)
    try:
        case.start()
        answer = hits(case, colds=1)
        long_prompt(case)
        longer(case, answer)
        case.stop()
        case.start()
        restart(case, answer)
    finally:
        case.stop()


def clock(lab: Lab, tokens=(4096, 16384, 32768), rounds=7) -> None:
    """Seconds to the first token, UCM and the file backend by turns on one GPU."""
    room = {
        "max_total_tokens": DEVICE_TOKENS,
        "hicache_ratio": 3.0,
        "chunked_prefill_size": 8192,
    }
    cases = [
        Case(lab, MODELS["wide"], f"wide-{backend}", backend, **room)
        for backend in ("ucm", "file")
    ]
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(Case.start, cases))
        for i in range(-1, rounds):  # kernels are compiled for each shape once: -1
            if lab.left() < ROUND_S:
                break
            for length in tokens:
                for case in cases:
                    one_round(case, i, length)
    finally:
        for case in cases:
            case.stop()


DEVICE_TOKENS, ROUND_S = 40960, 60


def one_round(case: Case, i: int, length: int) -> None:
    """cold, device, disk, disk with nothing in the page cache; in every other round host."""
    ids = prompt(f"{i} {length}", length + 12)
    case.wipe()
    case.step(f"cold {length} {i}", ids, 1)
    case.settle(0.8)
    case.step(f"device {length} {i}", ids, 1)
    case.forget()
    case.step(f"disk {length} {i}", ids, 1)
    case.forget()
    case.uncache()
    case.step(f"disk uncached {length} {i}", ids, 1)
    if i % 2 or case.backend == "file":
        return
    # Other prompts push this one off the device; the host still has it.
    for other in range(2):
        fill = prompt(f"fill {i} {length} {other}", DEVICE_TOKENS // 2)
        case.step("filler", fill, 1)
    case.settle(0.8)
    case.step(f"host {length} {i}", ids, 1)


def timed(lab: Lab, what, *words) -> str:
    """Run one scenario; say how it ended."""
    begun = time.monotonic()
    try:
        what(lab, *words)
        end = "done"
    except Exception as error:
        end = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - begun
    record(
        lab,
        case=" ".join([what.__name__, *words]),
        step="end",
        end=end,
        seconds=seconds,
    )
    return f"{what.__name__} {' '.join(words)}: {end} after {seconds:.0f} s"
