"""Ctrl-C and the other ways of being asked to stop: the first keeps what was found, the second leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

from flatout.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOW_CURSOR = b"\x1b[?25h"


@contextlib.contextmanager
def stop_politely() -> Iterator[None]:
    """Turn the first SIGINT, SIGTERM or SIGHUP inside into KeyboardInterrupt, and leave at once at the
    second: the trials end with us, since each one's own watcher ends it when we are gone.
    """
    asked = 0

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            # Not sys.exit: whatever is slow to clean up is what the person no longer waits for.
            if sys.stderr.isatty():
                os.write(sys.stderr.fileno(), _SHOW_CURSOR)
            os._exit(Interrupted.exit_code)
        raise KeyboardInterrupt

    # What is ignored stays so: SIGHUP under nohup, SIGINT of a background job.
    heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
