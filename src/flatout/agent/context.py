"""What an act may use of the agent that runs it."""

from __future__ import annotations

from typing import Any, Callable

from .protocol import Spec


class Context:
    """Given to every act when it is made."""

    def __init__(self, spec: Spec, emit: Callable[[dict[str, Any]], None]) -> None:
        self.spec = spec
        self.torch: Any = None
        """The user's torch; set before ``on_torch`` is called."""
        self.emit = emit
        """Write one event line; plain JSON data with an ``event`` key naming its kind."""
        self.graph_passes: list[Callable[[Any, Any], int]] = []
        """``rewrite(graph_module, example_inputs) -> number of rewrites``, run before gradients."""
        self.acts: dict[str, Any] = {}
        """Name -> act, in order of application."""

    @property
    def randomness_off(self) -> bool:
        """This process is a gradient probe: no dropout, and the compiler's random numbers as eager's."""
        return self.spec.randomness_off
