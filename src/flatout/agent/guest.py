"""The agent in one process of the user's: enters after torch's import, and leaves without a trace.

A process may be the training program, a launcher, a resource tracker or a DataLoader's worker. All of
them that import torch get the hooks and a ``hello`` file; only a process that runs a backward or an
optimiser step becomes a *training process*, with an event file of its own.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import traceback

from . import events, process, seeding, view_cache, wrapping
from .context import Context
from .protocol import Spec
from .refused import Refused
from .units import COMPILER_MODULES, CallPatch, follow_wrapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

OLDEST_TORCH = (2, 4)
EXIT_FAILED = 20  # errors.AgentError
EXIT_REFUSED = 23  # errors.TechniqueInactive


class Guest:
    """Everything of the agent that outlives a single step."""

    def __init__(self, finder: Any) -> None:
        self.started = time.perf_counter()
        self.finder = finder
        self.spec = Spec.load(finder.spec_path)
        self.context = Context(self.spec, self.emit)
        self.acts: list[Any] = []
        self.torch: Any = None
        self.training: Any = None
        self.file: events.EventFile | None = None
        self.inert = False
        """Nothing may be done any more: a DataLoader's worker, an unsupported torch, or the end."""
        self.forked = False
        self.in_act = False
        """An act is running; what it does with torch is not the program's doing."""
        self._early: list[dict[str, Any]] = []
        self._refusal: tuple[str, str] | None = None
        if self.spec.redirect_dir:
            from . import redirect

            redirect.install(self.spec.redirect_dir, (self.spec.trial_dir,))
            finder.watch(("safetensors.torch",))
        from . import trackers

        self._trackers = trackers
        if self.spec.mode == "trial":
            trackers.quiet_environment()
            finder.watch(trackers.MODULES)

    # --- imports

    def imported(self, name: str, module: Any) -> None:
        """Called after each watched import."""
        try:
            if self.spec.seed is not None and name in ("random", "numpy", "torch"):
                seeding.seed_module(name, module, self.spec.seed + process.environment_rank())
            if name == "torch":
                self._enter(module)
            elif name in COMPILER_MODULES and CallPatch.active is not None:
                CallPatch.active.tell_compiler()
            elif name == wrapping.MODULE:
                if self.spec.techniques:
                    follow_wrapping(module, self.training)
                if self.training is not None and self.training.guarding is not None:
                    self.training.guarding.compiler_there()
                if self.spec.mode == "trial":
                    wrapping.watch(module, self.emit)
            elif name == "torch._inductor.config":
                module.fallback_random = self.spec.randomness_off
            elif name == view_cache.MODULE:
                view_cache.mend(module)
            elif self.spec.mode == "trial" and name in self._trackers.MODULES:
                self._trackers.quiet(name, module)
            if self.spec.redirect_dir and name in ("torch", "safetensors.torch"):
                from . import redirect

                redirect.patch_library(name, module)
        except Exception as error:
            self.fail(f"import of {name}", error)
        for act in list(self.acts):
            if name in act.imports:
                self.ask(act, "on_import", name, module)

    def _enter(self, torch: Any) -> None:
        if self.torch is not None:
            return
        self.torch = self.context.torch = torch
        began = time.perf_counter()
        version = _version(torch)
        supported = version >= OLDEST_TORCH
        if supported:
            self._load_acts()
            from . import patches
            from .training import Training

            self.training = Training(self)
            patches.install(self, torch)
            for act in list(self.acts):
                self.ask(act, "on_torch", torch)
            if self.spec.randomness_off:
                from . import randomness

                randomness.switch_off(torch)
                self.finder.watch((randomness.INDUCTOR_CONFIG,))
            self.training.torch_ready()
            self.finder.watch(COMPILER_MODULES)
            self.finder.watch((wrapping.MODULE, view_cache.MODULE))
            os.register_at_fork(after_in_child=self._forked)
            for act in self.acts:
                self.finder.watch(tuple(act.imports))
        else:
            self.inert = True
        self.hello(supported=supported, seconds=time.perf_counter() - began)
        atexit.register(self.at_end)

    def hello(self, **more: Any) -> None:
        """Write ``hello-PID.json``: this process has torch."""
        value = {
            "event": "hello",
            "pid": os.getpid(),
            "parent": os.getppid(),
            "rank": process.environment_rank(),
            "argv": list(getattr(sys, "argv", [])),
            "executable": sys.executable,
            "python": ".".join(str(number) for number in sys.version_info[:3]),
            "torch": str(getattr(self.torch, "__version__", "")),
            "time": time.time(),
            **more,
        }
        events.write_file(os.path.join(self.spec.trial_dir, f"hello-{os.getpid()}.json"), value)

    # --- acts

    def _load_acts(self) -> None:
        for technique in self.spec.techniques:
            name = technique["name"]
            module = self._act_module(name)
            self.in_act = True
            try:
                act = module.Act(dict(technique.get("settings") or {}), self.context)
            except Refused as refused:
                self.refuse(name, str(refused))
                continue
            finally:
                self.in_act = False
            self.acts.append(act)
            self.context.acts[name] = act

    def _act_module(self, name: str) -> Any:
        """The module of an act: ours, or a test's own from the folder that its runner named."""
        from importlib import import_module, util

        whole_name = f"{__package__}.acts.{name}"
        path = os.path.join(self.spec.acts_dir or "", f"{name}.py")
        if not self.spec.acts_dir or not os.path.isfile(path):
            return import_module(whole_name)
        import_module(f"{__package__}.acts")
        spec = util.spec_from_file_location(whole_name, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[whole_name] = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def ask(self, act: Any, method: str, *args: Any) -> Any:
        """Call a method of an act; its refusal is ours to report."""
        was, self.in_act = self.in_act, True
        try:
            return getattr(act, method)(*args)
        except Refused as refused:
            self.refuse(act.name, str(refused))
        except Exception as error:
            self.fail(f"{act.name}.{method}", error)
        finally:
            self.in_act = was
        return None

    def ask_all(self, method: str, *args: Any) -> None:
        for act in list(self.acts):
            self.ask(act, method, *args)

    def refuse(self, name: str, reason: str) -> None:
        """A technique cannot act: the trial ends, a real run too, unless it may go on without it."""
        self.emit({"event": "refused", "technique": name, "reason": reason})
        self.acts = [act for act in self.acts if act.name != name]
        self.context.acts.pop(name, None)
        if self.training is not None and self.training.units is not None:
            self.training.units.recompose()
        if self.spec.mode == "run" and self.spec.degrade:
            self._say(f"going on without {name}: {reason}")
            return
        if self._refusal is None:
            self._refusal = (name, reason)
        if self.file is not None:
            self.end_if_refused()

    def end_unless_degraded(self) -> None:
        """In a training call the program trains, whether or not it has run a backward yet."""
        if self._refusal is not None and self.file is None:
            self.training.claim()
        self.end_if_refused()

    def end_if_refused(self) -> None:
        """Called once this is a training process: a launcher does not end for a technique's sake."""
        if self._refusal is None:
            return
        name, reason = self._refusal
        if self.spec.mode != "run":  # there flatout itself says it, from the event
            self._say(f"{name} cannot act in this program: {reason}")
        self.emit({"event": "end", "reason": f"refused: {name}: {reason}", "steps": self._steps()})
        self.leave(EXIT_REFUSED)

    # --- becoming a training process

    def claim(self) -> bool:
        """This process trains: open its event file. False where it may not act."""
        if self.inert:
            return False
        if process.is_loader_worker(self.torch):
            self.inert = True
            return False
        self.file = events.EventFile(self.spec.trial_dir, process.rank(self.torch))
        if not self.file.first:
            self.emit(
                {
                    "event": "note",
                    "note": f"another process has trained as rank {self.file.rank} before; "
                    f"this one (pid {os.getpid()}) is not measured with it",
                }
            )
        early, self._early = self._early, []
        for event in early:
            self.file.write(event)
        if self.forked:
            # A process forked by multiprocessing leaves without running atexit.
            util = sys.modules.get("multiprocessing.util")
            if util is not None:
                util.Finalize(None, self.at_end, exitpriority=0)
        self.end_if_refused()
        return True

    def _forked(self) -> None:
        """In a forked child: nothing that the parent counted is this process's."""
        self.forked = True
        self.in_act = False
        if self.file is not None:
            self.file.close()
            self.file = None
            self._early = []
        if not self.inert and self.training is not None:
            try:
                self.training.forget()
            except Exception as error:
                self.fail("fork", error)

    def emit(self, event: dict[str, Any]) -> None:
        """Write one event line, or keep it until this process turns out to train."""
        if self.file is None:
            self._early.append(event)
        else:
            self.file.write(event)

    # --- the end

    def fail(self, where: str, error: BaseException) -> None:
        """The agent itself went wrong: say so. A trial ends; a real job only if it depends on us."""
        text = f"{type(error).__name__}: {error}"
        event = {
            "event": "error",
            "where": where,
            "error": text,
            "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
        }
        try:
            events.write_file(os.path.join(self.spec.trial_dir, f"error-{os.getpid()}.json"), event)
            if self.file is not None:
                self.file.write(event)
        except OSError as second:
            text += f" (nor could it write that down: {second})"
        self._say(f"its agent failed at {where}: {text}")
        if self.spec.mode == "run" and (self.spec.degrade or not self.acts or self._steps() > 0):
            if not self.inert:
                self.inert = True
                self.ask_all("close", "the agent failed")  # an autocast region would stay open for ever
            return
        self.leave(EXIT_FAILED)

    def _say(self, text: str) -> None:
        try:
            os.write(2, f"flatout: {text}\n".encode("utf-8", "replace"))
        except OSError:
            self.inert = self.inert or self.spec.mode == "trial"

    def _steps(self) -> int:
        return self.training.steps.taken if self.training is not None else 0

    def leave(self, code: int) -> NoReturn:
        """End this process now, with what it has printed so far."""
        self.inert = True
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):
                continue
        os._exit(code)

    def at_end(self) -> None:
        """The program ends by itself; what it has shown is written down."""
        if self.torch is None or (self.inert and self.file is None):
            return
        error = getattr(sys, "last_value", None)
        how: dict[str, Any] = {}
        if error is not None:
            how = {"error": type(error).__name__, "error_text": str(error)[:2000]}
        if self.file is None:
            notes = [event["note"] for event in self._early if event.get("event") == "note"]
            if not self.forked:
                self.hello(ended=True, notes=notes, **how)
            return
        if self.inert:
            return
        self.inert = True
        steps = self._steps()
        try:
            self.training.finish(flush=error is None)
        except Exception as failure:
            self.emit({"event": "error", "where": "end", "error": f"{type(failure).__name__}: {failure}"})
        reason = f"the program ended by itself after {steps} steps"
        if error is not None:
            reason = f"the program failed after {steps} steps: {type(error).__name__}"
        self.emit({"event": "end", "reason": reason, "steps": steps, **how})


def _version(torch: Any) -> tuple[int, int]:
    numbers = []
    for part in str(getattr(torch, "__version__", "0.0")).split(".")[:2]:
        digits = "".join(character for character in part if character.isdigit())
        numbers.append(int(digits or 0))
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)
