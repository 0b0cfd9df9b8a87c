#
# MIT License
#
# Copyright (c) 2026 the UCM HiCache v2 contributors
#
#
# Permission is hereby granted, free of charge, to any person obtaining a copy
# of this software and associated documentation files (the "Software"), to deal
# in the Software without restriction, including without limitation the rights
# to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
# copies of the Software, and to permit persons to whom the Software is
# furnished to do so, subject to the following conditions:
#
# The above copyright notice and this permission notice shall be included in all
# copies or substantial portions of the Software.
#
# THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
# IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
# FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
# AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
# LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
# OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
# SOFTWARE.
#
"""Tools for whoever runs SGLang HiCache on UCM. Exit codes: 0 nothing is wrong, 1 something
was found, failed or could not be read, 2 nothing was done: the call is wrong, or its ROOT."""

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence

import ucm.integration.sglang.hicache as package
from ucm.integration.sglang.hicache._report import printable


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except (OSError, ValueError) as e:
        print(printable(f"error: {e}"), file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    """One command for each module of this package whose name has no leading underscore."""
    parser = argparse.ArgumentParser(
        prog="python -m ucm.integration.sglang.hicache", description=__doc__
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for found in pkgutil.iter_modules(package.__path__):
        if found.name.startswith("_"):
            continue
        module = importlib.import_module(f"{package.__name__}.{found.name}")
        command = commands.add_parser(
            found.name,
            help=module.__doc__.splitlines()[0],
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument("--json", action="store_true", help="print JSON, no text")
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
