"""What a compiled graph returns keeps its shape in the cache of torch's, which loses it up to 2.13."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.agent import view_cache

from .driven import PYTHON, Driven

PROGRAM = """
import torch
from torch._dynamo.utils import counters

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 16)
        self.head = torch.nn.Linear(16, 50, bias=False)

    def forward(self, tokens):
        logits = self.head(self.table(tokens))
        return logits, logits.view(-1, 50)

torch.manual_seed(0)
model = torch.compile(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tokens = torch.randint(0, 50, (12, 7))
for _ in range(2):
    logits, flat = model(tokens)
    torch.nn.functional.cross_entropy(flat, tokens.view(-1)).backward()
    optimizer.step()
print(tuple(logits.shape), tuple(flat.shape), counters["aot_autograd"]["autograd_cache_hit"])
"""


class Unsound:
    """As torch's: its size is gone when it is asked for."""

    has_symbolic_inputs = False

    def __init__(self, state: tuple[bool, list[int]]) -> None:
        self.made_with = state

    def __getstate__(self) -> Any:
        raise AssertionError("asking a view for its size may end the process")


class Symbolic(Unsound):
    has_symbolic_inputs = True


class Other:
    has_symbolic_inputs = False


class Kept:
    def __init__(self, sequence: list[Any], size: list[int]) -> None:
        self.sequence = sequence
        self.metadata = SimpleNamespace(size=[SimpleNamespace(val=length) for length in size])


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> type[Kept]:
    monkeypatch.setattr(Kept, "__reduce__", Kept.__reduce__)
    kinds = SimpleNamespace(_unsafe_view_ViewMeta=Unsound)
    view_cache.mend(SimpleNamespace(ViewMetaSequence=Kept, _functionalization=kinds))
    return Kept


def back(views: Kept) -> Any:
    pickled = pickle.dumps(views)
    assert b"flatout" not in pickled
    return pickle.loads(pickled)


@pytest.mark.usefixtures("kept")
def test_the_last_view_is_restored_by_the_size_beside_it() -> None:
    restored = back(Kept([Other(), Unsound((False, [9]))], [4, 5]))
    assert [type(view) for view in restored.sequence] == [Other, Unsound]
    assert restored.sequence[1].made_with == (False, [4, 5])
    assert [length.val for length in restored.metadata.size] == [4, 5]


@pytest.mark.usefixtures("kept")
def test_what_cannot_be_told_is_left_out_and_the_rest_is_as_it_was() -> None:
    assert back(Kept([Unsound((False, [9])), Other()], [4, 5])) is None
    assert back(Kept([Symbolic((True, [9]))], [4, 5])) is None
    assert [type(view) for view in back(Kept([Other()], [4])).sequence] == [Other]


def test_a_torch_that_keeps_no_such_views_is_left_alone() -> None:
    view_cache.mend(SimpleNamespace())
    view_cache.mend(SimpleNamespace(ViewMetaSequence=Other, _functionalization=SimpleNamespace()))
    assert "__reduce__" not in Other.__dict__


def test_a_graph_out_of_the_cache_runs_as_the_one_that_was_compiled(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    said = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        program = Driven(folder, [PYTHON, str(tmp_path / "train.py")])
        program.environment |= {
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
        }
        with program:
            assert program.run_to_end() == os.EX_OK, program.err
        said.append(program.out.split())
    assert said[0][:-1] == said[1][:-1] == ["(12,", "7,", "50)", "(84,", "50)"]
    assert (said[0][-1], said[1][-1]) == ("0", "1")
