"""Which Python a command starts, and what is installed there: found without importing torch.

``python x.py``, ``python -m pkg``, ``./train.py``, ``torchrun``, ``accelerate launch`` and any other
console script name their interpreter in the command itself or in the script's first line. A shell
script does not: :func:`named_by_command` answers None then, and ``runners/seen.py`` looks at the
process tree of a first start.
"""

from __future__ import annotations

# Paths are handled as text, as the command spells them.
# ruff: noqa: PTH110, PTH112, PTH113, PTH118, PTH119, PTH120, PTH123, PTH208
import difflib
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from flatout.errors import AgentDidNotEnter, CommandNotFound, TorchUnsupported
from flatout.host import Interpreter
from flatout.workload import Workload

OLDEST_PYTHON = (3, 9)
OLDEST_TORCH = (2, 4)
PACKAGES = (
    "transformers", "accelerate", "lightning", "pytorch_lightning", "numpy", "triton", "torchao",
)  # fmt: skip

_ENVIRONMENT_RUNNERS = frozenset(
    (
        "poetry",
        "pipenv",
        "conda",
        "mamba",
        "micromamba",
        "pdm",
        "hatch",
        "rye",
        "uv",
        "uvx",
        "pixi",
        "tox",
        "nox",
    )
)
"""Python programs, some of them, that start the command under another Python than their own."""

_PYTHON_NAME = re.compile(r"(python|pypy)[0-9.]*(-dbg)?t?$")
_TELLING_FLAGS = "IES"
_VALUE_FLAGS = "cmWX"

_ASK = r"""
import json, os, re, sys
sys.path[:] = [p for p in sys.path if p]
import importlib.util, site
from importlib import metadata
extra = sys.argv[1]
if extra: sys.path.insert(0, extra)
def version(name):
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        spec = None
    if spec is None: return None
    for folder in spec.submodule_search_locations or ():
        for file in ("version.py", "_version.py", "__version__.py"):
            try:
                with open(os.path.join(folder, file), encoding="utf-8") as text:
                    found = re.search(r"^__version__\s*(?::[^=]+)?=\s*['\"]([^'\"]+)", text.read(), re.M)
            except (OSError, ValueError):
                continue
            if found: return found.group(1)
    for candidate in (name, name.replace("_", "-")):
        try: return metadata.version(candidate)
        except metadata.PackageNotFoundError: pass
    return "unknown"
sites = list(site.getsitepackages()) if hasattr(site, "getsitepackages") else []
if site.ENABLE_USER_SITE: sites.append(site.getusersitepackages())
known = [os.path.realpath(p) for p in sys.path]
sites = [p for p in sites if os.path.isdir(p) and os.path.realpath(p) in known]
names = NAMES
versions = {name: version(name) for name in names}
print("\nflatout:" + json.dumps({
    "executable": sys.executable, "version": ".".join(map(str, sys.version_info[:3])),
    "sites": sites, "torch": version("torch"),
    "packages": {k: v for k, v in versions.items() if v},
}))
""".replace("NAMES", repr(PACKAGES))


@dataclass(frozen=True, kw_only=True)
class Named:
    """An interpreter as a command names it, not yet asked."""

    program: str
    """Absolute path of what to start."""
    flags: tuple[str, ...]
    """Of ``-I``, ``-E``, ``-S``."""
    first_path: str
    """The folder that Python would put first on its path: the script's; with ``-m`` the working folder."""
    environment: dict[str, str]
    """With what ``env NAME=VALUE`` in the command adds."""


def is_python(path: str) -> bool:
    """By its name: ``python``, ``python3.12``, ``pypy3`` and the like."""
    return _PYTHON_NAME.match(os.path.basename(path)) is not None


def find_program(name: str, cwd: str, environment: dict[str, str]) -> str:
    """The file that the kernel would execute for ``name``. Raises CommandNotFound."""
    if "/" in name:
        path = os.path.normpath(os.path.join(cwd, name))
        if not os.path.exists(path):
            raise CommandNotFound(f"{name} does not exist (looked for {path})", hint=_near(path))
        if os.path.isdir(path):
            raise CommandNotFound(f"{name} is a folder, not a program")
        if not os.access(path, os.X_OK):
            how = f"python {name}" if name.endswith(".py") else f"sh {name}" if name.endswith(".sh") else ""
            hint = (
                f"Start it as `{how}`, or make it executable: chmod +x {name}"
                if how
                else f"chmod +x {name}"
            )
            raise CommandNotFound(f"{name} is not executable", hint=hint)
        return path
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    for folder in folders:
        path = os.path.join(cwd, folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.normpath(path)
    if "=" in name:
        hint = f"To set a variable for the program, write `env {name} ...` or set it before flatout."
    elif os.path.exists(os.path.join(cwd, name)):
        hint = (
            f"There is a file {name} here: start it as `python {name}`."
            if name.endswith(".py")
            else f"Write ./{name}"
        )
    else:
        # of thousands of names one is always somewhat alike: only a slip of a letter is meant
        close = difflib.get_close_matches(name, _programs(folders), n=1, cutoff=0.82)
        hint = (
            f"Did you mean {close[0]}?"
            if close
            else "Check the spelling, or activate the environment it is in."
        )
    raise CommandNotFound(f"{name} is not found in PATH", hint=hint)


def _near(path: str) -> str:
    folder = Path(path).parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    close = difflib.get_close_matches(Path(path).name, names, n=1)
    return (
        f"Did you mean {folder / close[0]}?"
        if close
        else "Check the path, which is taken from the working folder."
    )


def _programs(folders: list[str]) -> list[str]:
    names: list[str] = []
    for folder in folders:
        try:
            names += os.listdir(folder or ".")
        except OSError:
            continue
    return names


def named_by_command(workload: Workload) -> Named | None:
    """The interpreter that the command names, or None where only running it can tell.

    Raises CommandNotFound when the program, or the script given to Python, does not exist.
    """
    return _named(list(workload.command), workload.cwd, dict(workload.environment))


def _named(words: list[str], cwd: str, environment: dict[str, str]) -> Named | None:
    if not words:
        raise CommandNotFound(
            "no command was given", hint="Write it after --: flatout train -- python train.py"
        )
    program = find_program(words[0], cwd, environment)
    name = os.path.basename(words[0])
    if name in _ENVIRONMENT_RUNNERS:
        return None
    if name == "env":
        return _named_after_env(words[1:], cwd, environment)
    if _PYTHON_NAME.match(name):
        return _python(program, words[1:], cwd, environment)
    first = _first_lines(program)
    if not first.startswith("#!"):
        return None
    line, _, rest = first[2:].partition("\n")
    shebang = line.split()
    if not shebang:
        return None
    if os.path.basename(shebang[0]) in ("sh", "dash"):
        # the form that pip and uv write when the path of the interpreter is long or holds spaces
        found = re.match(r"\s*'''exec'\s+(\"[^\"]+\"|\S+)", rest)
        if found is None:
            return None
        shebang = [found.group(1).strip('"')]
    if os.path.basename(shebang[0]) == "env":
        shebang = [word for word in shebang[1:] if not word.startswith("-") and "=" not in word]
    if not shebang or not _PYTHON_NAME.match(os.path.basename(shebang[0])):
        return None
    return _python(find_program(shebang[0], cwd, environment), [*shebang[1:], program], cwd, environment)


def _named_after_env(words: list[str], cwd: str, environment: dict[str, str]) -> Named | None:
    rest = list(words)
    while rest:
        word = rest[0]
        if "=" in word and not word.startswith("-"):
            name, _, value = word.partition("=")
            environment[name] = value
        elif word in ("-u", "--unset", "-C", "--chdir"):
            if word in ("-u", "--unset") and len(rest) > 1:
                environment.pop(rest[1], None)
            elif len(rest) > 1:
                cwd = os.path.join(cwd, rest[1])
            rest.pop(0)
        elif word in ("-i", "-", "--ignore-environment"):
            environment.clear()
        elif word in ("-S", "--split-string"):
            return None
        else:
            break
        rest.pop(0)
    return _named(rest, cwd, environment) if rest else None


def _python(program: str, arguments: list[str], cwd: str, environment: dict[str, str]) -> Named:
    flags, first_path = python_flags(arguments, cwd)
    return Named(program=program, flags=flags, first_path=first_path, environment=environment)


def python_flags(arguments: list[str], cwd: str) -> tuple[tuple[str, ...], str]:
    """(``-I``, ``-E`` and ``-S`` among Python's own flags, the folder first on its path).

    Raises CommandNotFound when a script is named that does not exist.
    """
    seen: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            script = os.path.join(cwd, word)
            if word != "-" and not os.path.exists(script):
                raise CommandNotFound(
                    f"the script {word} does not exist (looked for {script})", hint=_near(script)
                )
            folder = script if os.path.isdir(script) else os.path.dirname(os.path.realpath(script))
            return tuple(seen), "" if "-I" in seen else folder
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                rest[:1] = []
            continue
        for position, letter in enumerate(word[1:], 1):
            if letter in _TELLING_FLAGS and f"-{letter}" not in seen:
                seen.append(f"-{letter}")
            if letter in "cm":
                return tuple(seen), "" if "-I" in seen else cwd
            if letter in _VALUE_FLAGS:
                if position == len(word) - 1:
                    rest[:1] = []
                break
    return tuple(seen), cwd


def _first_lines(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(4096).decode("utf-8", "replace")
    except OSError:
        return ""


def ask(named: Named, cwd: str, *, direct: bool = True, seconds: float = 60.0) -> Interpreter:
    """Start the interpreter once and let it tell about itself.

    Raises AgentDidNotEnter when it does not answer.
    """
    flags = [flag for flag in named.flags if flag != "-S"]
    command = [named.program, "-B", *flags, "-c", _ASK, named.first_path]
    try:
        answer = subprocess.run(
            command, cwd=cwd, env=named.environment, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=seconds, check=False, text=True, errors="replace",
        )  # fmt: skip
        found = re.search(r"^flatout:(\{.*\})$", answer.stdout, re.M)
        problem = answer.stderr.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        found, problem = None, str(error)
    if found is None:
        raise AgentDidNotEnter(
            f"{named.program} does not behave as a Python interpreter of version 3.9 or later",
            hint=f"Try it by hand: {named.program} -c 'import sys; print(sys.version)'",
            child_error=problem[-2000:],
        )
    told = json.loads(found.group(1))
    return Interpreter(
        executable=told["executable"] or named.program,
        version=told["version"],
        site_packages=tuple(told["sites"]),
        torch_version=told["torch"],
        packages=told["packages"],
        flags=named.flags,
        direct=direct,
    )


def check(interpreter: Interpreter) -> Interpreter:
    """The same interpreter when the agent can work in it.

    Raises TorchUnsupported without torch or with one older than 2.4, AgentDidNotEnter under ``-S`` or a
    Python older than 3.9.
    """
    where = f"{interpreter.executable} (Python {interpreter.version})"
    if tuple(int(part) for part in interpreter.version.split(".")[:2]) < OLDEST_PYTHON:
        raise AgentDidNotEnter(
            f"the program runs under Python {interpreter.version}, and flatout's agent needs 3.9 or later",
            hint="Run the program under a newer Python.",
        )
    if "-S" in interpreter.flags:
        raise AgentDidNotEnter(
            "the program is started with `python -S`, which keeps its site module, and so the agent, out",
            hint="Start it without -S; if -S is needed, its script can `import site; site.main()` itself.",
        )
    if interpreter.torch_version is None:
        raise TorchUnsupported(
            f"torch is not installed in {where}, which the command starts",
            hint="Activate the environment that it is trained in, or name its python in the command.",
        )
    number = re.match(r"(\d+)\.(\d+)", interpreter.torch_version)
    if number is not None and (int(number.group(1)), int(number.group(2))) < OLDEST_TORCH:
        raise TorchUnsupported(
            f"torch {interpreter.torch_version} in {where} is too old: flatout needs torch 2.4 or later",
            hint=f"{interpreter.executable} -m pip install --upgrade torch",
        )
    return interpreter
