"""One autocast region that opens and closes at moments of our choosing, among the program's own.

``torch.autocast`` saves the state that it finds on entry and puts it back on exit, so regions must
close in the reverse order of opening. Ours opens at a training call and closes at ``backward``, which
need not nest with the program's ``with`` blocks:

* the program's block was open when ours opened and closes first (nanoGPT wraps its forward in
  ``autocast(dtype=float32)``): ours is closed just before it;
* the program's block opened inside ours and is still open when ours must close: ours is taken out from
  under it, by giving that block the state that ours had found.

Both need to know of every entry and exit, hence the patch of the class's ``__enter__`` and ``__exit__``.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable

from ..refused import Refused


class _Thread(threading.local):
    """Autocast state belongs to a thread, and so do these."""

    def __init__(self) -> None:
        self.ours: Any = None
        self.around: list[Any] = []
        """The program's regions that are open, outermost first, entered before ours."""
        self.inside: list[Any] = []
        """The program's regions that are open, entered after ours."""


class Region:
    """At most one region of ours in a thread."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._class = torch.amp.autocast_mode.autocast
        self._thread = _Thread()
        self.opened = 0
        self.closed: dict[str, int] = {}
        self.overridden: dict[str, int] = {}
        """What the program's own region around the call said, by count."""
        self._enter: Callable[..., Any] = self._class.__enter__
        self._exit: Callable[..., Any] = self._class.__exit__

    @property
    def is_open(self) -> bool:
        """In this thread."""
        return self._thread.ours is not None

    def watch(self) -> None:
        """Patch the class; before the program enters its first region."""
        enter, leave = self._enter, self._exit

        @functools.wraps(enter)
        def watched_enter(region: Any) -> Any:
            result = enter(region)
            (self._thread.around if self._thread.ours is None else self._thread.inside).append(region)
            return result

        @functools.wraps(leave)
        def watched_exit(region: Any, *error: Any) -> Any:
            if any(region is other for other in self._thread.inside):
                _take_last(self._thread.inside, region)
            elif any(region is other for other in self._thread.around):
                self.close("the program's own autocast region ended")
                _take_last(self._thread.around, region)
            return leave(region, *error)

        self._class.__enter__ = watched_enter
        self._class.__exit__ = watched_exit

    def unwatch(self) -> None:
        self.close("end")
        self._class.__enter__ = self._enter
        self._class.__exit__ = self._exit

    def open(self, device_type: str, dtype: Any) -> None:
        """Enter, unless it is open already. Refused where the program autocasts to 16 bits itself."""
        if self._thread.ours is not None:
            return
        enabled = self._torch.is_autocast_enabled(device_type)
        found = self._torch.get_autocast_dtype(device_type)
        low = (self._torch.bfloat16, self._torch.float16)
        if enabled and found in low:
            raise Refused(f"already there: the program runs its model under autocast {_short(found)}")
        if self._thread.around:
            said = f"autocast {_short(found)}" if enabled else "autocast disabled or float32"
            self.overridden[said] = self.overridden.get(said, 0) + 1
        region = self._class(device_type, dtype=dtype)
        self._enter(region)
        self._thread.ours = region
        self.opened += 1

    def close(self, why: str) -> None:
        """Leave, whatever the program has opened since. Nothing happens when it is not open."""
        region = self._thread.ours
        if region is None:
            return
        self._thread.ours = None
        self.closed[why] = self.closed.get(why, 0) + 1
        torch = self._torch
        if not self._thread.inside:
            self._exit(region, None, None, None)
        else:
            oldest = next((r for r in self._thread.inside if r.device == region.device), None)
            if oldest is None:
                # Only another device's regions are open inside: their saved state is not ours.
                torch.set_autocast_enabled(region.device, region.prev)
                torch.set_autocast_dtype(region.device, region.prev_fastdtype)
            else:
                oldest.prev = region.prev
                oldest.prev_fastdtype = region.prev_fastdtype
            self._thread.inside[0].prev_cache_enabled = region.prev_cache_enabled
            torch.autocast_decrement_nesting()
            self._thread.around.extend(self._thread.inside)
            self._thread.inside = []
        # Casts of weights are kept until the outermost region ends; after a step they would be stale
        # and, made under no_grad, they would carry no gradient (pytorch#112583).
        torch.clear_autocast_cache()


def _take_last(regions: list[Any], region: Any) -> None:
    for index in range(len(regions) - 1, -1, -1):
        if regions[index] is region:
            del regions[index]
            return


def _short(dtype: Any) -> str:
    return str(dtype).replace("torch.", "")
