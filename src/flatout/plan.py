"""An ordered set of techniques with their settings."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One technique of a plan, with its settings."""

    name: str
    settings: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.settings:
            return self.name
        inside = ", ".join(f"{key}={value}" for key, value in sorted(self.settings.items()))
        return f"{self.name}({inside})"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Techniques to apply together. The empty plan is the program as it is.

    Choices are kept in the order in which they are applied, which is the catalogue's, so two plans of
    the same techniques are equal however they were built.
    """

    choices: tuple[Choice, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(choice.name for choice in self.choices)

    @property
    def key(self) -> str:
        """Stable text that names this plan in the ledger; ``baseline`` for the empty one."""
        return "+".join(str(choice) for choice in self.choices) or "baseline"

    def __bool__(self) -> bool:
        return bool(self.choices)
