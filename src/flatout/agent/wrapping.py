"""Notices where a program replaces a module by ``torch.compile(module)``, and says what that costs.

The replacement's ``state_dict`` has ``_orig_mod.`` before every key, which a plain module of the same
class then refuses to load (pytorch#101107, karpathy/nanoGPT#325). ``module.compile()`` leaves the keys.
"""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

MODULE = "torch._dynamo.eval_frame"
"""Where the replacement's class is; imported by the first ``torch.compile``."""


def note(class_name: str) -> str:
    """What a person is told of one wrapped class."""
    return (
        f"the program wraps {class_name} in torch.compile(module): every key that the wrapper saves begins "
        "with '_orig_mod.', and a plain module does not load them. module.compile() compiles in place and "
        "leaves the keys as they are, as flatout's own compile does"
    )


def watch(module: Any, tell: Callable[[dict[str, Any]], None]) -> None:
    """Emit a note for the first instance of each class that is wrapped."""
    plain = module.OptimizedModule.__init__
    told: set[str] = set()

    @functools.wraps(plain)
    def wrap(self: Any, mod: Any, *rest: Any, **named: Any) -> None:
        class_name = type(mod).__name__
        if class_name not in told:
            told.add(class_name)
            tell({"event": "note", "note": note(class_name)})
        plain(self, mod, *rest, **named)

    module.OptimizedModule.__init__ = wrap
