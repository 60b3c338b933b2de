"""BF16: the forward and the loss under autocast, weights and their updates in float32."""

from __future__ import annotations

from typing import Any, Callable

from ..refused import Refused
from . import matmul_dtypes, mixed_precision_contracts
from .autocast_region import Region
from .base import Act as _Base
from .graph_backend import compiled_by_program
from .recurrent import Recurrent

_WATCHED_CALLS = 2
"""Of each unit: the first step's, and one more."""


class Act(_Base):
    """Autocast from the first training call to ``backward``; parameters are never cast.

    A program of a framework gets it through the framework's own setting, and then no region of ours.
    """

    name = "bf16"
    imports = mixed_precision_contracts.MODULES

    def __init__(self, settings: dict[str, Any], context: Any) -> None:
        super().__init__(settings, context)
        self._region: Region | None = None
        self._recurrent: Recurrent | None = None
        self._frameworks: list[str] = []
        self._matmul_dtypes: dict[str, int] = {}
        self._zeroed = False
        """``zero_grad`` was called while the region was open."""

    def on_torch(self, torch: Any) -> None:
        self._region = Region(torch)
        self._region.watch()
        self._recurrent = Recurrent(torch)
        self._recurrent.watch()
        # With a graph in between, the graph shows the dtypes, and a function mode would stop it.
        self.context.graph_passes.append(self._watch_graph)

    def on_import(self, name: str, module: Any) -> None:
        mixed_precision_contracts.patch(name, module, self._engaged)

    def _engaged(self, framework: str) -> None:
        if framework not in self._frameworks:
            self._frameworks.append(framework)

    def _watch_graph(self, graph_module: Any, example_inputs: Any) -> int:
        matmul_dtypes.watch_graph(self.context.torch, self._matmul_dtypes, graph_module)
        return 0

    def wrap(self, unit: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        torch = self.context.torch
        device_type = self._check(torch, unit.module)
        watched: list[bool] = []
        # A function mode would make the program's own compiler compile once more.
        compiled = compiled_by_program(unit.module, call)
        graphs = any(name in self.context.acts for name in ("compile", "sdpa"))

        def training_call(*args: Any, **kwargs: Any) -> Any:
            if self._zeroed:
                self._zeroed = False
                if self._region is not None:
                    self._region.close("zero_grad, then another call")
            if not self._frameworks and self._region is not None:
                self._region.open(device_type, torch.bfloat16)
            try:
                if len(watched) < _WATCHED_CALLS and not graphs:
                    watched.append(True)
                    if compiled:
                        result = call(*args, **kwargs)
                        self._count_result(result)
                        return result
                    return matmul_dtypes.watched_call(torch, self._matmul_dtypes, call, args, kwargs)
                if compiled and not graphs and not self._matmul_dtypes and len(watched) == _WATCHED_CALLS:
                    watched.append(True)
                    return matmul_dtypes.watched_call(torch, self._matmul_dtypes, call, args, kwargs)
                return call(*args, **kwargs)
            except BaseException:
                self.close("exception")
                raise

        return training_call

    def _count_result(self, result: Any) -> None:
        """Of a call that the program compiles: what comes out in bfloat16 came from a product in it.

        Where nothing does (a loss alone), the next call is looked into after all.
        """
        torch = self.context.torch
        seen: dict[str, int] = {}
        values = result.values() if isinstance(result, dict) else result
        for value in values if not torch.is_tensor(values) and hasattr(values, "__iter__") else (values,):
            matmul_dtypes.count(torch, seen, value)
        if seen.get("bfloat16"):
            self._matmul_dtypes["bfloat16"] = self._matmul_dtypes.get("bfloat16", 0) + 1

    @staticmethod
    def _check(torch: Any, module: Any) -> str:
        """The device type of the module's parameters; Refused where autocast would do nothing."""
        parameters = [p for p in module.parameters() if p.is_floating_point()]
        if not parameters:
            raise Refused(f"{type(module).__name__} has no floating-point parameters")
        dtypes = {p.dtype for p in parameters}
        if dtypes <= {torch.bfloat16, torch.float16}:
            raise Refused(f"already there: all parameters of {type(module).__name__} are {dtypes.pop()}")
        if torch.float64 in dtypes:
            raise Refused(f"{type(module).__name__} has float64 parameters, which autocast leaves alone")
        return str(parameters[0].device.type)

    def before_backward(self, loss: Any) -> None:
        self.close("backward")

    def after_step(self, step: int) -> None:
        self.close("end of the step")

    def close(self, why: str) -> None:
        """Leave the region, at all that ends a training call's surroundings but ``zero_grad``.

        Many programs call ``zero_grad`` between the model and the loss; a region closed there would
        leave the loss to bfloat16 logits without autocast's float32. Where ``backward`` then never
        comes, the next training call closes the region before it opens its own.
        """
        if why == "zero_grad":
            self._zeroed = self._region is not None and self._region.is_open
        elif self._region is not None:
            self._zeroed = False
            self._region.close(why)

    def evidence(self) -> dict[str, Any]:
        region = self._region
        return {
            "frameworks": list(self._frameworks),
            "regions_opened": region.opened if region else 0,
            "closed_by": dict(region.closed) if region else {},
            "overridden": dict(region.overridden) if region else {},
            "matmul_dtypes": dict(self._matmul_dtypes),
            "recurrent": dict(self._recurrent.calls) if self._recurrent else {},
        }
