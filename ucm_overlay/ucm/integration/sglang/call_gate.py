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
"""What every call from SGLang passes through: no exception out, no call after close()."""

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any

from ucm.integration.sglang.log_limit import LogLimit

logger = logging.getLogger(__name__)


class NotInitializedError(RuntimeError):
    """A call came before the host pool that it needs."""


class CallGate:
    """Counts calls in flight, so that close() can wait for them. Holds no lock meanwhile."""

    def __init__(self):
        self._changed = threading.Condition()
        self._calls = 0
        self.closed = False

    def enter(self) -> bool:
        with self._changed:
            if self.closed:
                return False
            self._calls += 1
            return True

    def leave(self) -> None:
        with self._changed:
            self._calls -= 1
            if self.closed:
                self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Let no more calls in; False when some are still running after timeout_s."""
        with self._changed:
            self.closed = True
            return self._changed.wait_for(lambda: not self._calls, timeout_s)


def served(miss: Callable[..., Any]) -> Callable:
    """Decorate a method of an object with a `gate`: miss(arguments) if closed or failed."""

    limit = LogLimit()

    def decorate(method: Callable) -> Callable:
        @functools.wraps(method)
        def call(self, *args, **kwargs):
            if not self.gate.enter():
                return miss(*args, **kwargs)
            try:
                return method(self, *args, **kwargs)
            except NotInitializedError:
                raise
            except Exception:
                more = limit.allow(method.__name__)
                if more is not None:
                    logger.exception(
                        "%s failed; answering a miss%s", method.__name__, more
                    )
                return miss(*args, **kwargs)
            finally:
                self.gate.leave()

        return call

    return decorate
