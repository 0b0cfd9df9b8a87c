"""docs/reliability-results.md from docs/data/reliability.json, part by part."""

import json
from pathlib import Path

HEAD = (
    "# Results\n\nWritten by `make soak PUBLISH=1`; "
    "[reliability.md](reliability.md) says what they mean.\n"
)


def publish(result: dict, docs: Path) -> None:
    """Parts that did not run keep the figures of the run before."""
    data = docs / "data" / "reliability.json"
    known = json.loads(data.read_text()) if data.exists() else {}
    known |= result
    data.write_text(json.dumps(known, indent=1) + "\n")
    (docs / "reliability-results.md").write_text(page(known))


def page(result: dict) -> str:
    out = [HEAD]
    for name, part in result.items():
        size = ", ".join(f"{value} {what}" for what, value in part["size"].items())
        facts = [size, f"{part['seconds']} s", f"seed {part['seed']}", part["machine"]]
        out += [f"## {name.capitalize()}", "", ", ".join(filter(None, facts)) + ".", ""]
        out += ["| figure | value |", "|---|---|"]
        rows = part["figures"].items()
        out += [f"| {what} | {_text(value)} |" for what, value in rows]
        out.append("")
    return "\n".join(out)


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
