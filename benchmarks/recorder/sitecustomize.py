"""Prints every loss that a program calls backward on, as repr, without flatout: the reference.

Loaded through PYTHONPATH by benchmarks/empty_plan.py, in the untouched run and in flatout's alike, so
that both sides are read by the same means. Seeds nothing unless RECORDER_SEED is set. Ends the program
after RECORDER_BACKWARDS calls, where that is set.
"""

import importlib.abc
import importlib.util
import os
import sys

CALLS = [0]


def _record(torch):
    plain = torch.autograd.backward
    limit = int(os.environ.get("RECORDER_BACKWARDS", "0"))

    def backward(tensors, *rest, **named):
        loss = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
        print(f"RECORDED {CALLS[0]} {loss.detach().double().sum().item()!r}", file=sys.stderr, flush=True)
        CALLS[0] += 1
        if limit and CALLS[0] >= limit:
            sys.stdout.flush()
            os._exit(0)
        return plain(tensors, *rest, **named)

    torch.autograd.backward = backward
    seed = os.environ.get("RECORDER_SEED")
    if seed is not None:
        import random

        random.seed(int(seed))
        torch.manual_seed(int(seed))


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds torch as everybody else does, and records once its own module body has run.

    Stays in place when a library only asks whether there is a torch (importlib.util.find_spec).
    """

    asking = False

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self.asking:
            return None
        self.asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.asking = False
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module):
            sys.meta_path.remove(self)
            run(module)
            _record(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _AfterTorch())
