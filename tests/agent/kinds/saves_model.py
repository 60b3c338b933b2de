"""Saves its whole model object and its weights, and makes a copy of it for averaging, as it trains."""

from __future__ import annotations

import copy
import importlib.util
import pickle

assert importlib.util.find_spec("torch") is not None  # a probe that must not count as the import

import torch  # noqa: E402
from torch import nn  # noqa: E402


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.outer = nn.Linear(16, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.relu(self.inner(inputs)))


torch.manual_seed(0)
model = Net()
keys = list(model.state_dict())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(12):
    model.eval()
    with torch.no_grad():
        model(torch.ones(3, 8))
    model.train()
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average = copy.deepcopy(model)
    assert list(model.state_dict()) == keys
    assert isinstance(model, Net)
    restored = pickle.loads(pickle.dumps(model))
    torch.save(model, "model.pt")
    restored = torch.load("model.pt", weights_only=False)
    for other in (average, restored):
        assert torch.equal(other.inner.weight, model.inner.weight)
        assert other.__dict__.get("_compiled_call_impl") is None
        other(torch.ones(2, 8)).sum().backward()
        model.zero_grad()
    print(number, repr(loss.item()), flush=True)
