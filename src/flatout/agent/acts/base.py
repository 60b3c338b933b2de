"""What every act offers: no-op defaults, so that an act writes only the moments that it needs."""

from __future__ import annotations

from typing import Any, Callable, ClassVar


class Act:
    """The acting half of one technique, alive for the whole of the user's program.

    The agent calls the methods at the moments that they name. An act that cannot do its part raises
    :class:`..refused.Refused` with the reason; it never goes on silently without it.
    """

    name: ClassVar[str] = ""
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules after whose import :meth:`on_import` wants to be called."""

    def __init__(self, settings: dict[str, Any], context: Any) -> None:
        self.settings = settings
        self.context = context

    def on_torch(self, torch: Any) -> None:
        """Right after torch's own import, before the user's next line."""

    def on_import(self, name: str, module: Any) -> None:
        """Right after the import of one of :attr:`imports`."""

    def wrap(self, unit: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """A callable around ``call``, which runs ``unit.module`` in one training call."""
        return call

    def on_optimizer(self, optimizer: Any) -> None:
        """Before the first step of each optimiser, and again after its ``load_state_dict``."""

    def before_backward(self, loss: Any) -> None:
        """Before each backward of a loss."""

    def after_step(self, step: int) -> None:
        """After every step of the program; must cost microseconds."""

    def close(self, why: str) -> None:
        """The training call's surroundings end: ``zero_grad``, optimiser step, no-grad call, exception."""

    def evidence(self) -> dict[str, Any]:
        """Plain JSON data that shows what this act did and saw."""
        return {}
