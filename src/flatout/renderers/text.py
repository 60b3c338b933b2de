"""Small pure functions over text that goes to a terminal or into a document."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

# CSI, OSC (ended by BEL or ST) and two-byte escapes: what terminals act on (ECMA-48).
_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_UNSAFE_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")


def plain(text: str, *, keep_lines: bool = False) -> str:
    """``text`` with every character that a terminal would act on made visible.

    Colour and cursor sequences are dropped; other control, direction and surrogate characters become
    ``\\xNN`` or ``\\uNNNN``. A tab becomes four blanks. ``keep_lines`` keeps newlines, and of a line that
    was redrawn with carriage returns (a progress bar) only its last state.
    """
    text = _ESCAPE_SEQUENCE.sub("", text)
    if keep_lines:
        lines = text.replace("\r\n", "\n").split("\n")
        return "\n".join(plain(line.rstrip("\r").rpartition("\r")[2]) for line in lines)
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character == "\t":
        return "    "
    if unicodedata.category(character) not in _UNSAFE_CATEGORIES:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def wrap(text: str, width: int, *, indent: str = "", first: str | None = None) -> list[str]:
    """Lines of ``text`` within ``width`` columns; ``first`` starts the first one, ``indent`` the others."""
    import textwrap

    return textwrap.wrap(
        text,
        width=width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def duration(seconds: float) -> str:
    """``350 us``, ``26.8 ms``, ``4.21 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 59.995:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def size(count: float) -> str:
    """Bytes as ``512 B``, ``1.5 KiB``, ``2.3 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def table(rows: Sequence[tuple[str, ...]], *, gap: int = 2) -> list[str]:
    """Rows with their columns aligned to the left; the last column is left as it is."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "".join(f"{cell:<{width + gap}}" for cell, width in zip(row[:-1], widths, strict=True)) + row[-1]
        for row in rows
    ]
