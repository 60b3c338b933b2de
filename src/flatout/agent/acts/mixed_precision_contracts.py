"""BF16 asked for in a framework's own words: Accelerate, Hugging Face Trainer, Lightning, Fabric.

Each function patches one constructor, so that the framework sets up its own autocast where it knows
best (around its loss, its evaluation, its gradient accumulation), and tells ``engaged`` about it.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

from ..refused import Refused

MODULES = (
    "transformers.training_args",
    "accelerate.accelerator",
    "lightning.pytorch.trainer.trainer",
    "pytorch_lightning.trainer.trainer",
    "lightning.fabric.fabric",
    "lightning_fabric.fabric",
)


def patch(name: str, module: Any, engaged: Callable[[str], None]) -> None:
    """Patch what module ``name`` offers. ``engaged(framework)`` is called when a program uses it."""
    if name == "transformers.training_args":
        _training_arguments(module.TrainingArguments, engaged)
    elif name == "accelerate.accelerator":
        _keyword(module.Accelerator, "mixed_precision", "bf16", "accelerate", engaged)
    elif name.endswith("fabric.fabric"):
        _keyword(module.Fabric, "precision", "bf16-mixed", "lightning", engaged)
    else:
        _keyword(module.Trainer, "precision", "bf16-mixed", "lightning", engaged)


def _keyword(kind: Any, keyword: str, value: str, framework: str, engaged: Callable[[str], None]) -> None:
    """Make ``kind(keyword=value)`` of every construction that asks for full precision."""
    plain = kind.__init__
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        asked = bound.arguments.get(keyword)
        text = str(getattr(asked, "value", asked))
        if text in ("None", "no", "32", "32-true"):
            bound.arguments[keyword] = value
        elif not text.startswith("bf16"):
            raise Refused(f"already there: {kind.__name__}({keyword}={asked!r})")
        plain(*bound.args, **bound.kwargs)
        engaged(framework)

    kind.__init__ = init


def _training_arguments(kind: Any, engaged: Callable[[str], None]) -> None:
    """Set ``bf16=True`` before TrainingArguments checks and spreads its fields."""
    plain = kind.__post_init__

    @functools.wraps(plain)
    def post_init(self: Any) -> None:
        if self.fp16:
            raise Refused("already there: TrainingArguments(fp16=True)")
        asked = self.bf16
        if not asked:
            self.bf16 = True
        try:
            plain(self)
        except ValueError as error:
            if asked:
                raise
            raise Refused(f"TrainingArguments(bf16=True): {str(error).splitlines()[0]}") from error
        engaged("hf_trainer")

    kind.__post_init__ = post_init
