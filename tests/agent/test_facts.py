"""What a guard trial notes of a loss function: its targets, and nothing while a compiler looks at it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import flatout

from .driven import PYTHON

pytestmark = pytest.mark.torch

PROGRAM = """
import contextlib, types
import torch
from flatout.agent.guarding.facts import Facts

guarding = types.SimpleNamespace(torch=torch, looking=True, aside=contextlib.nullcontext)
facts = Facts(guarding)
facts.watch_losses()
graphs = []

def call(scores, target):
    return torch.nn.functional.cross_entropy(scores * 2, target)

def backend(graph, _inputs):
    graphs.append(graph)
    return graph

scores, target = torch.randn(4, 5, requires_grad=True), torch.tensor([1, 2, 3, 4])
eager = call(scores, target)
assert len(facts.targets) == 1 and facts.targets[0][2] == 10.0, facts.targets
compiled = torch.compile(call, backend=backend)(scores, target)
assert torch.equal(eager, compiled)
assert len(graphs) == 1, "the watched loss breaks the graph"
"""


def test_a_loss_in_a_compiled_graph_does_not_break_it() -> None:
    done = subprocess.run(
        [PYTHON, "-c", PROGRAM],
        env={"PYTHONPATH": str(Path(flatout.__file__).parents[1]), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
