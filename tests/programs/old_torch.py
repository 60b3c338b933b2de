"""Imports torch and looks at its version; run with ``faketorch`` on PYTHONPATH."""

from __future__ import annotations

import time

import torch

print("torch", torch.__version__, flush=True)
time.sleep(0.5)
