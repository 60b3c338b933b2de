"""plan.toml: a plan with its proof, which a person can read, edit and keep in version control.

``write_plan`` and ``read_plan`` agree; ``stale_reasons`` says what has changed since the proof.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout.codec import from_plain, to_plain
from flatout.errors import PlanError
from flatout.fingerprint import file_sha256, find_script
from flatout.host import Host, Interpreter
from flatout.plan import Choice, Plan
from flatout.workload import Discovery, Workload
from flatout.writing import write_whole

FORMAT = 1
_KEYS = {"format", "cache_dir", "technique", "workload", "host", "versions", "proof", "discovery"}


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was proved about a plan against the untouched program."""

    ratio: float
    low: float
    high: float
    confidence: float
    smallest_effect: float | None
    baseline_step_seconds: float
    plan_step_seconds: float
    pairs: int
    method: str
    guard_note: str
    date: str
    """UTC, ISO 8601."""


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A plan, what it was proved for, and what the agent needs to apply it."""

    plan: Plan
    command: tuple[str, ...]
    cwd: str
    script: str | None
    """Path of the program's own file as found in the command, or None (a module or console script)."""
    script_sha256: str | None
    interpreter: str
    python: str
    torch: str
    flatout: str
    packages: dict[str, str]
    """Versions of the frameworks that the program may use."""
    gpus: tuple[str, ...]
    """Names, one per GPU; empty: no GPU."""
    driver: str | None
    cuda: str | None
    discovery: Discovery
    shares: dict[str, float] = field(default_factory=dict)
    """Technique name -> time of a step without it over with it."""
    by_hand: dict[str, str] = field(default_factory=dict)
    proof: Proof | None = None
    """None: written by hand."""
    cache_dir: str | None = None
    """Compile caches of the winning trial."""


def write_plan(path: Path, plan: PlanFile) -> None:
    """Write plan.toml, whole or not at all. DiskFull or UsageError when it cannot be written."""
    write_whole(path, plan_text(plan))


def plan_text(plan: PlanFile) -> str:
    """plan.toml's text, with comments for its reader on top."""
    import tomli_w

    techniques = []
    for choice in plan.plan.choices:
        row: dict[str, Any] = {"name": choice.name, "settings": to_plain(choice.settings)}
        if choice.name in plan.shares:
            row["share"] = plan.shares[choice.name]
        if plan.by_hand.get(choice.name):
            row["by_hand"] = plan.by_hand[choice.name]
        techniques.append(row)
    data: dict[str, Any] = {
        "format": FORMAT,
        "technique": techniques,
        "workload": {
            "command": list(plan.command),
            "cwd": plan.cwd,
            "script": plan.script,
            "script_sha256": plan.script_sha256,
        },
        "host": {"gpus": list(plan.gpus), "driver": plan.driver, "cuda": plan.cuda},
        "versions": {
            "interpreter": plan.interpreter,
            "python": plan.python,
            "torch": plan.torch,
            "flatout": plan.flatout,
            "packages": plan.packages,
        },
        "cache_dir": plan.cache_dir,
        "proof": to_plain(plan.proof) if plan.proof is not None else None,
        "discovery": to_plain(plan.discovery),
    }
    return _heading(plan) + tomli_w.dumps(_without_none(data), multiline_strings=True)


def read_plan(path: Path) -> PlanFile:
    """Read and check plan.toml. PlanError names the line or the field, and what was found there."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PlanError(f"there is no plan at {path}", hint="`flatout train` writes one.") from None
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{path} cannot be read: {error}") from error
    return parse_plan(text, str(path))


def parse_plan(text: str, name: str = "plan.toml") -> PlanFile:
    """See :func:`read_plan`; ``name`` is for messages."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanError(
            f"{name} is not valid TOML: {error}", hint="Mend the line that it names."
        ) from error
    found = data.get("format")
    if found is None:
        raise PlanError(f"{name} is no plan: it has no `format`", hint="`flatout train` writes one.")
    if not isinstance(found, int) or isinstance(found, bool):
        raise PlanError(f"{name}: format: expected a number, not {found!r}", hint=f"This one is {FORMAT}.")
    if found > FORMAT:
        raise PlanError(
            f"{name} has format {found}; this flatout reads up to {FORMAT}",
            hint="Update flatout, or make the plan again with `flatout train`.",
        )
    reader = _Reader(name)
    strange = sorted(set(data) - _KEYS)
    if strange:
        raise PlanError(
            f"{name}: unknown field {strange[0]!r}",
            hint=f"Those that there are: {', '.join(sorted(_KEYS))}.",
        )
    workload = reader.table(data, "workload")
    host = reader.table(data, "host")
    versions = reader.table(data, "versions")
    rows = reader.value(data, "technique", list[Any], [])
    choices = [reader.choice(row, index) for index, row in enumerate(rows, start=1)]
    proof = data.get("proof")
    return PlanFile(
        plan=reader.plan(choices),
        command=reader.field(workload, "workload.command", tuple[str, ...]),
        cwd=reader.field(workload, "workload.cwd", str),
        script=reader.field(workload, "workload.script", str | None, None),
        script_sha256=reader.field(workload, "workload.script_sha256", str | None, None),
        interpreter=reader.field(versions, "versions.interpreter", str, ""),
        python=reader.field(versions, "versions.python", str, ""),
        torch=reader.field(versions, "versions.torch", str, ""),
        flatout=reader.field(versions, "versions.flatout", str, ""),
        packages=reader.field(versions, "versions.packages", dict[str, str], {}),
        gpus=reader.field(host, "host.gpus", tuple[str, ...], ()),
        driver=reader.field(host, "host.driver", str | None, None),
        cuda=reader.field(host, "host.cuda", str | None, None),
        discovery=reader.plain(Discovery, reader.table(data, "discovery"), "discovery"),
        shares={row["name"]: reader.field(row, "technique.share", float) for row in rows if "share" in row},
        by_hand={
            row["name"]: reader.field(row, "technique.by_hand", str) for row in rows if "by_hand" in row
        },
        proof=reader.plain(Proof, proof, "proof") if proof is not None else None,
        cache_dir=reader.field(data, "cache_dir", str | None, None),
    )


def stale_reasons(plan: PlanFile, workload: Workload, host: Host, interpreter: Interpreter) -> list[str]:
    """What differs from when the plan was proved, each in one sentence; empty: nothing that matters.

    The command's own options may differ (a real job trains longer than a search); its file, the GPU, the
    driver's major version, torch and the frameworks may not.
    """
    reasons = []
    script = find_script(workload)
    now = file_sha256(script) if script is not None else None
    if plan.script_sha256 is not None and now != plan.script_sha256:
        if script is None:
            reasons.append(f"another program is run: it was proved for {plan.script}")
        elif str(script) != plan.script:
            reasons.append(f"it was proved for {plan.script}, this command runs {script}, which differs")
        else:
            reasons.append(f"{script} has changed since the plan was proved")
    elif plan.script_sha256 is None and _program(workload.command) != _program(plan.command):
        proved, given = _program(plan.command), _program(workload.command)
        if proved[1:2] == given[1:2] == ("-c",):
            reasons.append("the code behind -c has changed since the plan was proved")
        else:
            reasons.append(f"it was proved for `{_opening(proved)}`, not for `{_opening(given)}`")
    gpus = tuple(gpu.name for gpu in host.gpus)
    if plan.gpus != gpus:
        reasons.append(f"it was proved on {_gpu_text(plan.gpus)}, this machine has {_gpu_text(gpus)}")
    if plan.torch and interpreter.torch_version != plan.torch:
        reasons.append(
            f"it was proved with torch {plan.torch}, here is {interpreter.torch_version or 'none'}"
        )
    if _major(plan.driver) != _major(host.driver):
        reasons.append(
            f"it was proved with driver {plan.driver or 'none'}, here is {host.driver or 'none'}"
        )
    if plan.python and _minor(plan.python) != _minor(interpreter.version):
        reasons.append(f"it was proved with Python {plan.python}, here is {interpreter.version}")
    for package, version in plan.packages.items():
        here = interpreter.packages.get(package)
        if here != version:
            reasons.append(f"it was proved with {package} {version}, here is {here or 'none'}")
    return reasons


def _program(command: tuple[str, ...]) -> tuple[str, ...]:
    """What names the program in a command without a file of its own: its words before the options."""
    words = [Path(command[0]).name, *command[1:]] if command else []
    for place, word in enumerate(words[1:-1], start=1):
        if word in ("-m", "-c"):
            return (words[0], word, words[place + 1])
        if not word.startswith("-"):
            break
    return tuple(words[:1])


def _opening(program: tuple[str, ...]) -> str:
    from flatout.words import command_line

    text = command_line(program)
    return f"{text[:80]} ..." if len(text) > 80 else text


def _gpu_text(names: tuple[str, ...]) -> str:
    if not names:
        return "no GPU"
    return names[0] if len(names) == 1 else f"{len(names)} x {names[0]}"


def _major(version: str | None) -> str | None:
    return version.split(".")[0] if version else None


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def _heading(plan: PlanFile) -> str:
    from flatout.words import command_line

    proof = plan.proof
    lines = ["A plan made by flatout."]
    if not plan.plan:
        lines.append("It is empty: nothing was found that makes this program faster on this machine.")
    if proof is not None:
        where = _gpu_text(plan.gpus) if plan.gpus else "the CPU"
        lines.append(
            f"Proved: {proof.ratio:.3f} times the speed of the untouched program "
            f"[{proof.low:.3f}, {proof.high:.3f}] at {proof.confidence:.0%} confidence, {proof.date}:"
        )
        lines.append(
            f"a step takes {proof.plan_step_seconds * 1e3:.4g} ms instead of "
            f"{proof.baseline_step_seconds * 1e3:.4g} ms on {where}."
        )
        lines.append(f"Guard: {proof.guard_note or 'nothing noted'}.")
    lines += [
        "",
        f"To run under it:  flatout run --plan THIS_FILE -- {command_line(plan.command)}",
        "To edit it: take out a [[technique]] that you do not want, or change its settings; what is left",
        "was then not proved together. Each one's by_hand says how to get it without flatout.",
    ]
    # a line end or another control character within one of them would end the comment, or the file
    safe = ("".join(char if char.isprintable() else " " for char in line) for line in lines)
    return "".join(f"# {line}".rstrip() + "\n" for line in safe) + "\n"


def _without_none(value: Any) -> Any:
    """TOML has no word for nothing: a missing key says it. It has none for bytes that are not UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return value


class _Reader:
    """Takes fields out of tables; a PlanError names the field where one does not fit."""

    def __init__(self, name: str) -> None:
        self._name = name

    def table(self, data: dict[str, Any], key: str) -> dict[str, Any]:
        found = data.get(key)
        if not isinstance(found, dict):
            what = "is missing" if found is None else f"is not a table but {found!r}"
            raise PlanError(
                f"{self._name}: [{key}] {what}", hint="Make the plan again with `flatout train`."
            )
        return found

    def value(self, data: dict[str, Any], key: str, kind: Any, default: Any) -> Any:
        found = data.get(key, default)
        if not isinstance(found, kind if isinstance(kind, type) else kind.__origin__):
            raise PlanError(f"{self._name}: {key}: expected a list of tables ([[{key}]]), not {found!r}")
        return found

    def field(self, data: dict[str, Any], key: str, kind: Any, *default: Any) -> Any:
        last = key.rsplit(".", 1)[-1]
        if last not in data:
            if default:
                return default[0]
            raise PlanError(f"{self._name}: {key} is missing")
        return self.plain(kind, data[last], key)

    def plain(self, kind: Any, data: Any, key: str) -> Any:
        try:
            return from_plain(kind, data)
        except ValueError as error:
            raise PlanError(f"{self._name}: {key}: {error}") from error

    def choice(self, row: Any, index: int) -> Choice:
        if not isinstance(row, dict):
            raise PlanError(f"{self._name}: technique {index}: expected a table, not {row!r}")
        name = self.field(row, "technique.name", str)
        strange = sorted(set(row) - {"name", "settings", "share", "by_hand"})
        if strange:
            raise PlanError(f"{self._name}: technique {name}: unknown field {strange[0]!r}")
        settings = self.field(row, "technique.settings", dict[str, object], {})
        return Choice(name=name, settings=settings)

    def plan(self, choices: list[Choice]) -> Plan:
        """In order of application; PlanError for an unknown name, one given twice, or two that collide."""
        from flatout.techniques import make_plan

        try:
            return make_plan(choices)
        except PlanError as error:
            raise PlanError(f"{self._name}: {error.message}", hint=error.hint) from error
