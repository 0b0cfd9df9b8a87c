"""The support table, docs/support.md: written by a full run of the matrix, checked by each row."""

from _pin import ROOT

SUPPORT = ROOT / "docs" / "support.md"
HEAD = """# What is supported, release by release

Written by `make matrix` from what its tests saw; not edited by hand. A cell is what happened
to the pages of that model kind between SGLang's real cache controller and the real store:

- **pass**: written by one controller, prefetched by another, byte for byte
- **no L3 in SGLang**: the release's own code brings these pools to no storage backend
- **refused**: the connector turns the pool down when SGLang starts, with this reason

"""


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def render(rows: dict[str, dict[str, str]]) -> str:
    columns = sorted({mix for cells in rows.values() for mix in cells})
    lines = [_line(["SGLang", *columns]), _line(["---"] * (len(columns) + 1))]
    for version, cells in reversed(rows.items()):
        lines.append(_line([version, *(cells.get(mix, "") for mix in columns)]))
    return HEAD + "\n".join(lines) + "\n"


def write_table(rows: dict[str, dict[str, str]]) -> None:
    SUPPORT.write_text(render(rows))


def check_row(version: str, cells: dict[str, str]) -> list[str]:
    """A run of one row must agree with the table that is there; a full run writes it."""
    if not SUPPORT.is_file():
        return []
    lines = SUPPORT.read_text().splitlines()
    found = [line for line in lines if line.startswith(f"| {version} |")]
    wanted = _line([version, *(cells[mix] for mix in sorted(cells))])
    return [] if found == [wanted] else [f"docs/support.md is not: {wanted}"]
