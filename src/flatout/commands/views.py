"""Where progress is shown: redrawn in place on a terminal, as plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, TYPE_CHECKING, Protocol, Self

from flatout.renderers.progress import best_text, frame, progress_line
from flatout.search.progress import Phase, Progress

if TYPE_CHECKING:
    from rich.text import Text

SECONDS_BETWEEN_LINES = 5.0
REDRAWS_PER_SECOND = 4


class View(Protocol):
    """A context manager that is told of every Progress."""

    def tell(self, progress: Progress) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class PlainView:
    """Lines one after another: every milestone, and something else at most every few seconds.

    The conclusion is left to the report, which follows.
    """

    def __init__(self, stream: IO[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._last_seconds: float | None = None
        self._last_text = ""
        self._last_best = ""

    def tell(self, progress: Progress) -> None:
        now = self._clock()
        quiet = self._last_seconds is not None and now - self._last_seconds < SECONDS_BETWEEN_LINES
        best = best_text(progress)
        if progress.phase is Phase.DONE or progress.text == self._last_text:
            return
        if quiet and not progress.milestone and best == self._last_best:
            return
        print(progress_line(progress, with_best=best != self._last_best), file=self._stream, flush=True)
        self._last_seconds, self._last_text, self._last_best = now, progress.text, best

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class LiveView:
    """A frame that rich redraws in place; its milestones stay on the screen at the end."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream, highlight=False, markup=False)
        self._milestones: list[str] = []
        self._progress: Progress | None = None
        self._told_seconds = 0.0
        self._live = Live(
            get_renderable=self._draw,
            console=self._console,
            refresh_per_second=REDRAWS_PER_SECOND,
            transient=True,
        )

    def tell(self, progress: Progress) -> None:
        self._told_seconds = time.monotonic()
        self._progress = progress
        if progress.milestone and progress.phase is not Phase.DONE:
            self._milestones.append(progress_line(progress))

    def _draw(self) -> Text:
        from rich.text import Text

        if self._progress is None:
            return Text("  starting")
        since = time.monotonic() - self._told_seconds if self._progress.phase is not Phase.DONE else 0.0
        lines = frame(
            self._progress, self._milestones, since_seconds=since, width=max(40, self._console.width - 1)
        )
        return Text("\n".join(lines), no_wrap=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        for line in self._milestones:
            self._console.print(line)


def view_for(stream: IO[str] | None = None) -> View:
    """A live view where ``stream`` (standard error) is a terminal that can redraw, else plain lines."""
    import os

    stream = sys.stderr if stream is None else stream
    if stream.isatty() and os.environ.get("TERM") not in (None, "dumb"):
        return LiveView(stream)
    return PlainView(stream)
