"""What flatout and the agent say to each other: a spec, a control block and event lines.

All three live in the trial's folder, which both sides see (it is passed through the isolation):

``spec.json``
    written by flatout before the start, read once by the agent: see :class:`Spec`.
``control``
    of a trial alone, 4,096 bytes mapped by both: how many steps the program may take, whether it should
    stop, and how far each rank has come: see :class:`Control`.
``hello-PID.json``
    written by the agent in every process that imports torch, before the user's next line.
``rank-R.jsonl``
    one JSON object a line, appended and flushed by the training process of rank R: see ``EVENTS``.

Every rank stops at the same step without talking to the others, since all obey one number: a
process that has taken ``granted`` steps holds still at the end of that step, its device idle, until
more are granted or ``STOP`` is commanded. This is also how two resident processes take turns.
"""

from __future__ import annotations

import json
import mmap
import os
import struct

TYPE_CHECKING = False  # typing itself takes milliseconds at the start of every Python process
if TYPE_CHECKING:
    from typing import Any

SPEC_VARIABLE = "FLATOUT_SPEC"
"""The environment variable that names the spec file."""

FORMAT = 1

# commands in the control block
RUN = 0
STOP = 1
PROFILE = 2
"""Profile the next granted step with torch.profiler, then report it as a ``profile`` event."""

EVENTS = {
    "holds": "pid (as the program's own namespace counts): this training process will hold at the end of "
    "steps, and may be stopped there with all that it has started",
    "discovered": "once, when steps are understood: step_unit 'optimizer' or 'backward', anchor "
    "(index of the optimiser, by order of its first step, whose step ends a step of the program), "
    "optimizers, "
    "backwards_per_step, units (name, class, parameters, called 'call' or 'forward'), device, "
    "frameworks, already (technique name -> what was seen), loaders, world_size, optimizer kinds",
    "block": "at each hold, and at the end: first_step, step_seconds (one per step; null for a step "
    "whose time means nothing, such as the first after a hold), losses ([step, value], one per backward; "
    "a value that is not finite is the string 'nan', 'inf' or '-inf'), "
    "loader_wait_seconds (total inside), loader_start_seconds (of those, for the first batch of an epoch), "
    "agent_seconds (total inside), peak_bytes, wall_seconds, recompiles, graph_breaks",
    "applied": "technique, detail: what was changed, once per technique",
    "refused": "technique, reason: it cannot act in this program; the trial ends",
    "active": "technique, active (bool), evidence (dict): once, after the first steps or at the end",
    "guard": "reference saved, or compared: see agent/gradients.py",
    "guarding": "in guard trials: what was seen at a guarded step, its ``what`` one of facts, model, "
    "gradients, updates, buffers, dropout, note: see agent/guarding/",
    "profile": "one step: kernels and operators by name with count and seconds, device_busy_seconds, "
    "wall_seconds; work, gaps, span_seconds and (on a CPU) peaks: see agent/timeline.py",
    "watch": "in a real run: step, what (nan_loss, frozen_parameter, ...), detail",
    "end": "reason, steps: the last line of a training process that ends in an orderly way",
}


class Spec:
    """One trial or run, as the agent needs it. Plain data; ``to_json`` and ``from_json`` agree."""

    def __init__(
        self,
        *,
        trial_dir: str,
        mode: str = "trial",
        techniques: list[dict[str, Any]] | None = None,
        seed: int | None = None,
        step_unit: str | None = None,
        anchor: int | None = None,
        units: list[dict[str, Any]] | None = None,
        reference_path: str | None = None,
        reference_role: str | None = None,
        randomness_off: bool = False,
        guard: dict[str, Any] | None = None,
        late_path: str | None = None,
        redirect_dir: str | None = None,
        degrade: bool = False,
        acts_dir: str | None = None,
        format: int = FORMAT,  # noqa: A002
    ) -> None:
        self.format = format
        self.trial_dir = trial_dir
        self.mode = mode
        """``trial`` (held by the control block, ends at STOP) or ``run`` (the real job)."""
        self.techniques = techniques or []
        """Ordered: ``{"name": "bf16", "settings": {}}``; each name has a module in ``acts/``."""
        self.seed = seed
        """Seed Python, numpy and torch at import, or None: leave them alone."""
        self.step_unit = step_unit
        """``optimizer``, ``backward`` or None: discover."""
        self.anchor = anchor
        self.units = units or []
        """The units that the baseline's ``discovered`` event named, so that a technique acts on the very
        first training call; empty while discovering."""
        self.reference_path = reference_path
        """Where the first step's gradients are saved, or compared with."""
        self.reference_role = reference_role
        """``save``, ``compare`` or None."""
        self.randomness_off = randomness_off
        """Dropout p = 0 and the compiler's random numbers as eager's, for the gradient probe."""
        self.guard = guard
        """Of a guard trial (agent/guarding/): ``role``, ``folder`` of all of them, ``points`` (name ->
        steps that are compared), ``updates`` (steps at which all optimisers get the untouched program's
        gradients), ``precision`` of the truth, and of a control its ``rounding``,
        ``draw`` and ``fewer_bits``."""
        self.late_path = late_path
        """Where weights and buffers are written down once it has been timed, for the guard's late point."""
        self.redirect_dir = redirect_dir
        """Third way of isolation: Python's writers go here. None where a stronger way holds."""
        self.degrade = degrade
        """``run`` only: go on without a technique that cannot act, saying so."""
        self.acts_dir = acts_dir
        """Of tests and benchmarks alone: a folder whose ``NAME.py`` is the act of technique NAME."""

    def to_json(self) -> str:
        return json.dumps(self.__dict__, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Spec:
        values = json.loads(text)
        if values.get("format") != FORMAT:
            raise ValueError(f"spec format {values.get('format')!r}, this agent reads {FORMAT}")
        return cls(**values)

    @classmethod
    def load(cls, path: str) -> Spec:
        with open(path, encoding="utf-8") as file:
            return cls.from_json(file.read())


class Control:
    """The mapped control block.

    Layout, native int64: [0] granted steps, [1] command, [2] held still, [64 + r] steps taken by rank r,
    of at most 448. Each side writes only its own words, and an aligned 8-byte store
    is atomic on every machine that torch runs on, so no lock is needed.
    """

    SIZE = 4096

    def __init__(self, path: str, *, create: bool = False) -> None:
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        descriptor = os.open(path, flags, 0o600)
        try:
            if create:
                os.ftruncate(descriptor, self.SIZE)
            self._map = mmap.mmap(descriptor, self.SIZE)
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map).cast("q")

    @property
    def granted(self) -> int:
        return self._words[0]

    @granted.setter
    def granted(self, steps: int) -> None:
        self._words[0] = steps

    @property
    def command(self) -> int:
        return self._words[1]

    @command.setter
    def command(self, value: int) -> None:
        self._words[1] = value

    @property
    def still(self) -> bool:
        """In the hold that the latest grant ended, the process and all below it were stopped: nothing was
        prefetched."""
        return bool(self._words[2])

    @still.setter
    def still(self, value: bool) -> None:
        self._words[2] = int(value)

    def steps_of(self, rank: int) -> int:
        return self._words[64 + rank]

    def set_steps(self, rank: int, steps: int) -> None:
        self._words[64 + rank] = steps

    def close(self) -> None:
        self._words.release()
        self._map.close()


def pth_line(bootstrap_path: str, spec_path: str) -> str:
    """The one line of a ``.pth`` file that lets the agent in, whatever the program's environment says.

    ``site`` executes lines that start with ``import``. The line runs ``bootstrap_path`` as a file, so
    that nothing of flatout's environment gets onto ``sys.path``, and hands it the spec's path.
    """
    names = {"__name__": "flatout_bootstrap", "__file__": bootstrap_path, "SPEC_PATH": spec_path}
    code = f"compile(open({bootstrap_path!r}, 'rb').read(), {bootstrap_path!r}, 'exec')"
    return f"import sys; exec({code}, {names!r})\n"


assert struct.calcsize("q") == 8
