"""Isolation: a trial leaves no trace.

The program of a trial runs under a supervisor (supervise.py) in the strongest way that works here:

1. overlay.py: a mount namespace in which everything that may be written is overlaid,
2. landlock.py: a copy of the working folder, with writes elsewhere forbidden by the kernel,
3. redirect: Python's own writers are redirected by the agent; native writers are not held.

choose.py tries them in this order and says why a stronger one does not work; thrown.py lists what a
program wrote; scratch.py owns the folders where that lies meanwhile; processes.py ends everything that
a program started.
"""

from __future__ import annotations

from flatout.isolation.choose import WAYS, Way, available

__all__ = ["WAYS", "Way", "available"]
