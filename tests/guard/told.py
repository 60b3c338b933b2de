"""What guard trials tell, made by hand."""

from __future__ import annotations

from typing import Any


def row(name: str = "layer.weight", **more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": name,
        "elements": 1000,
        "truth_rms": 1.0,
        "rms": 1.0,
        "db": 130.0,
        "finite": True,
        "slope": 1.0,
        "slope_error": 1e-8,
        "nil": 0.0,
        "equal": False,
    }
    return {**values, **more}


def gradients(of: str, rows: list[dict[str, Any]], step: int = 1, **more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "event": "guarding",
        "what": "gradients",
        "role": of,
        "of": of,
        "against": "truth",
        "step": step,
        "point": {1: "start", 2: "start", 5: "later", 6: "later", 8: "late", 9: "late"}[step],
        "take": "0.1",
        "rows": rows,
        "equal": False,
        "lost": [],
        "gained": [],
        "shapes": [],
        "losses": [2.0],
        "wanted_losses": [2.0],
    }
    return {**values, **more}


def facts(step: int = 1, **more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "event": "guarding",
        "what": "facts",
        "step": step,
        "calls": 1,
        "inputs": [batch(step)],
        "inner_inputs": [batch(step)],
        "targets": [[[8], "whole", 20.0 + step, 60.0, 90.0]],
        "losses": [2.0],
        "backwards": 1,
        "settings": [[{"lr": 1e-3, "weight_decay": 0.1, "betas": [0.9, 0.999]}]],
        "skipped": 0,
        "asleep": [],
        "inner_asleep": [],
    }
    return {**values, **more}


def batch(step: int, *, rows: int = 8) -> list[Any]:
    return [[rows, 16], "float", 3.5 * step, 120.0 + step, 700.0 - step]


def model(**more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "event": "guarding",
        "what": "model",
        "ties": [["head.weight", "tokens.weight"]],
        "dtypes": {"Net.layer.weight": "float32"},
        "state_dtypes": ["float32"],
        "convolutions": False,
        "matmul": "highest",
        "cudnn_tf32": True,
        "capability": None,
    }
    return {**values, **more}


def update(step: int = 1, **more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": "layer.weight",
        "size": 1e-3,
        "own_size": 1e-3,
        "apart": 1e-10,
        "start_apart": 0.0,
        "rounding": 1e-9,
        "moved": True,
        "wanted_moved": True,
    }
    return {
        "event": "guarding",
        "what": "updates",
        "step": step,
        "take": "0.1",
        "rows": [{**values, **more}],
    }
