"""A Python program without torch."""

from __future__ import annotations

import time

for _ in range(3):
    time.sleep(0.1)
print("done", flush=True)
