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
"""Keeps a failure that repeats from filling the log."""

import threading
import time
from collections.abc import Hashable

_INTERVAL_S = 10.0


class LogLimit:
    """At most one line for each key in an interval; any thread may ask."""

    def __init__(self, interval_s: float = _INTERVAL_S):
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._last: dict[Hashable, float] = {}
        self._hidden: dict[Hashable, int] = {}

    def allow(self, key: Hashable) -> str | None:
        """What to append to the line, how many were hidden before it; None to hide this one."""
        now = time.monotonic()
        with self._lock:
            if now - self._last.get(key, -self._interval_s) < self._interval_s:
                self._hidden[key] = self._hidden.get(key, 0) + 1
                return None
            self._last[key] = now
            hidden = self._hidden.pop(key, 0)
        return f" ({hidden} like this were not logged)" if hidden else ""
