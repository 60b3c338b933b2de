"""``python -m tinytrain``."""

from __future__ import annotations

from tinytrain.loop import main

if __name__ == "__main__":
    main()
