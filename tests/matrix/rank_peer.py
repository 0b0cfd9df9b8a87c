"""One rank of a server: `python rank_peer.py RANK SIZE FOLDER SCENARIOS` prints what it saw.

Every rank runs the same scenarios in the same order, as SGLang's ranks do. Called by
test_ranks.py, which compares what the ranks say.
"""

import hashlib
import json
import sys
from pathlib import Path

import controller
import recorded_store
import torch
from mixes import NODES, RANK_MIXES
from storage import lose, storage_options


def writes() -> dict[str, int]:
    """Pages that SGLang gave this rank to store, by pool."""
    pages: dict[str, int] = {}
    for call in recorded_store.calls("batch_set_v1"):
        pages["kv"] = pages.get("kv", 0) + len(call.args[0])
    for call in recorded_store.calls("batch_set_v2"):
        for transfer in call.args[0]:
            name = getattr(transfer.name, "value", transfer.name)
            pages[name] = pages.get(name, 0) + len(transfer.keys or [])
    return pages


def asked(hashes: list[str]) -> dict[str, list[int]]:
    """Numbers of the pages that SGLang asked this rank to read, by sidecar pool."""
    pages: dict[str, list[int]] = {}
    for call in recorded_store.calls("batch_get_v2"):
        for transfer in call.args[0]:
            name = getattr(transfer.name, "value", transfer.name)
            found = [hashes.index(key) for key in transfer.keys or []]
            pages.setdefault(name, []).extend(found)
    return pages


def run(scenario: dict, rank: int, folder: Path) -> dict:
    """Write on every rank, lose what the scenario says, prefetch on every rank."""
    recorded_store.CALLS.clear()
    folder = folder / scenario["name"].replace(" ", "-")
    folder.mkdir(exist_ok=True)
    options = storage_options(folder)
    mix = RANK_MIXES[scenario["mix"]]()
    writer = controller.Controller(mix, options)
    tokens = controller.tokens_of(1)
    hashes = controller.page_hashes(tokens)
    slots = mix.fill(1)
    for name in scenario["sharded"]:
        mix.refill(name, slots, seed=100 * (rank + 1))
    written = mix.contents(slots)
    torch.distributed.barrier()
    writer.write(slots, hashes, scenario.get("nodes", NODES))
    torch.distributed.barrier()
    for loss in scenario.get("losses", []):
        if loss["rank"] == rank:
            lose(folder, writer.backend, loss["pool"], hashes[loss["page"]])
    torch.distributed.barrier()
    reader = controller.Controller(RANK_MIXES[scenario["mix"]](), options)
    fetched = reader.prefetch(tokens)
    right = {}
    for name, found in reader.mix.contents(fetched.slots).items():
        pages = list(fetched.pages[name])
        right[name] = torch.equal(found[: len(pages)], written[name][pages])
    torch.distributed.barrier()
    stopped = reader.detach() + writer.detach()
    return {
        "wrote": writes(),
        "asked": asked(hashes),
        "hit": fetched.hit,
        "counts": fetched.counts,
        "right": right,
        "digest": {n: hashlib.md5(d.numpy()).hexdigest() for n, d in written.items()},
        "threads": [thread.name for thread in stopped],
        "files": sum(
            p.is_file() and ".layout" not in p.parts for p in folder.rglob("*")
        ),
    }


def main(rank: int, size: int, folder: Path, scenarios: list[dict]) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size
    )
    controller.prepare(rank, size)
    print(json.dumps([run(scenario, rank, folder) for scenario in scenarios]))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
