"""What a tool says when it refuses, and how it exits: 0 done, 1 a check failed, 2 wrong use, 3 a human is needed."""

import os
import signal
import sys
import traceback
from collections.abc import Callable


class Refusal(Exception):
    """One clear block: what was expected, what was found, the next command."""

    def __init__(
        self, problem: str, *, expected: str, found: str, next: str, code: int = 1
    ):
        super().__init__(problem)
        self.expected, self.found, self.next, self.code = expected, found, next, code

    def block(self, tool: str) -> str:
        rows = [f"{tool}: REFUSED  {self}"]
        for label in ("expected", "found"):
            first, *rest = getattr(self, label).splitlines() or [""]
            rows.append(f"  {label:<9} {first}")
            rows += [f"  {'':<9} {line}" for line in rest]
        rows += ["Nothing was changed.", f"next: {self.next}"]
        return "\n".join(rows)


def run(tool: str, main: Callable[[], int | None]) -> None:
    """Run `main` and exit; a traceback is printed only with V=1 in the environment."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    try:
        code = main() or 0
        sys.stdout.flush()
    except Refusal as refusal:
        print(refusal.block(tool), file=sys.stderr)
        code = refusal.code
    except KeyboardInterrupt:
        next = "next: the same command again, which goes on or tells how to"
        print(f"{tool}: interrupted\n{next}", file=sys.stderr)
        code = 130
    except BrokenPipeError:  # of `make status | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    except Exception as error:
        if os.environ.get("V") == "1":
            traceback.print_exc()
        print(f"{tool}: FAILED  {error}\nnext: run again with V=1", file=sys.stderr)
        code = 1
    sys.exit(code)
