"""The guard's own trials: short processes that nobody times, started when a plan is about to be accepted.

The untouched program, its truth (float64; float32 without TF32 where that fails) and a second unchanged
run come first and serve every plan of the search; then each plan has one process, or two where the program
draws random numbers. Starts overlap where memory holds them side by side. A plan with fewer bits is refused
for what rounding could bring only after a control has been asked (guard/control.py): one more process,
once a search for each format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from flatout.codec import from_plain, to_plain
from flatout.guard.bits import format_of_plan
from flatout.guard.control import FEWER_BITS
from flatout.guard.records import Told, all_of, notes
from flatout.guard.whole import Reference, judge_whole, text_of
from flatout.plan import Plan
from flatout.runners import GuardTrial, SessionEnded
from flatout.search.bench import Bench, Process
from flatout.search.record import nth
from flatout.trial import GuardReport, Outcome, State

POINTS: dict[str, tuple[int, ...]] = {"start": (1, 2), "later": (5, 6), "late": (8, 9)}
SHORT_POINTS: dict[str, tuple[int, ...]] = {"start": (1, 2), "late": (4, 5)}
"""For programs of a few steps, and where one takes long."""
SHORTEST_POINTS: dict[str, tuple[int, ...]] = {"start": (1, 2)}
LONG_STEP_SECONDS = 5.0
FLOAT64_MEMORY = 2.6
"""Times the untouched program's: of GPT-2 124M with attention by hand, on a GPU."""
UPDATES = (1, 2)
UPDATES_OF_SCALED = (5, 6)
"""Of programs with a gradient scaler, which skips the first steps until its scale fits."""
REFERENCE_ROLES = ("baseline", "truth", "again")
"""Their trials start together, and wait for each other."""
LATE = "late.pt"
RANDOM_STEPS = 3
"""Of the trials with randomness on: dropout is looked at in the last (agent/guarding/dropout.py)."""
DRAWS = 3
"""Of a control, at most: the second and third only where a few parameters alone are at stake."""


def points_of(bench: Bench) -> dict[str, tuple[int, ...]]:
    """Which steps are compared."""
    steps = bench.program_steps
    for points in (POINTS, SHORT_POINTS):
        last = _last_step(points)
        slow = points is POINTS and bench.baseline_step_seconds > LONG_STEP_SECONDS
        if (steps is None or steps > last) and not slow:
            return points
    return SHORTEST_POINTS


def _last_step(points: Mapping[str, tuple[int, ...]]) -> int:
    """0 where no step is compared."""
    return max((step for one in points.values() for step in one), default=0)


def guard_seconds(bench: Bench, plan: Plan, *, with_reference: bool = True) -> float:
    """Estimate of what guarding ``plan`` takes, the reference included where it is still to be made."""
    if not bench.runner.guards or bench.baseline is None or not plan:
        return 0.0
    if known_report(bench, plan) is not None:
        return 0.0
    steps = _last_step(points_of(bench))
    random = bench.discovery is not None and bench.discovery.random
    walk = steps * bench.baseline_step_seconds
    plain = bench.start_seconds(Plan())
    start = 0.0 if bench.ahead.has(f"guard:{plan.key}") else bench.start_seconds(plan)
    seconds = start + walk + (bench.start_seconds(plan) if random else 0.0)
    if with_reference and _trial(bench, "guard:baseline") is None:
        # their starts overlap where memory holds them side by side
        seconds += plain * (1 if bench.resident else 3) + 3 * walk + (plain if random else 0.0)
    return seconds


def start_ahead(bench: Bench, plan: Plan, *, reserve_seconds: float = 0.0) -> bool:
    """The plan's own trial, where it will be needed if the plan is faster. False where there is no room."""
    reference = bench.guard_reference
    if reference is None or not reference.baseline or not bench.runner.guards:
        return True
    key = f"guard:{plan.key}"
    if known_report(bench, plan) is not None or _trial(bench, key) is not None:
        return True
    trial = _trial_of(bench, "plan", truth=bool(reference.precision))
    off = _without_randomness(bench, trial)
    return bench.ahead.start(key, plan, reserve_seconds=reserve_seconds, guard=trial, randomness_off=off)


def known_report(bench: Bench, plan: Plan) -> GuardReport | None:
    """What the guard said of a plan before, in this sitting or an earlier one."""
    for event in reversed(bench.ledger.events(bench.search, "guarded")):
        if event.data["plan"] == plan.key:
            report: GuardReport = from_plain(GuardReport, event.data["report"])
            return report
    return None


def guard_plan(
    bench: Bench, plan: Plan, *, reserve_seconds: float = 0.0, beside: Callable[[], None] = lambda: None
) -> GuardReport | None:
    """What the guard's trials say of a plan, run where the ledger does not know them yet; None where the
    runner has none. ``reserve_seconds`` of the budget stay untouched; ``beside`` is called when the plan's
    own trial is about to start."""
    if not bench.runner.guards:
        return None
    known = known_report(bench, plan)
    if known is not None:
        return known
    assert bench.discovery is not None
    began = bench.clock()
    needed, left = guard_seconds(bench, plan), max(0.0, bench.left() - reserve_seconds)
    if needed > left:
        text = f"the guard's own trials need about {needed:.0f} s, and the budget has {left:.0f} s for them"
        return GuardReport(passed=None, unchecked=(text,))
    techniques = {name: bench.technique(name).effect for name in plan.names}
    bench.say(f"{plan.key}: the guard's own trials")
    reference = make_reference(bench)
    if not reference.baseline:
        return GuardReport(passed=None, unchecked=reference.unchecked)
    beside()
    told, why = _told(
        bench, f"guard:{plan.key}", plan, _trial_of(bench, "plan", truth=bool(reference.precision))
    )
    unchecked = [f"the plan's guard trial: {why}"] if why else []

    control: list[Told] = []

    def judged(random: Told = ()) -> GuardReport:
        assert bench.discovery is not None
        return judge_whole(
            told,
            reference,
            techniques,
            bench.discovery,
            random=random,
            control=tuple(control),
            points=points_of(bench),
            unchecked=tuple(unchecked),
            seconds=bench.clock() - began,
        )

    report = judged()
    format_name = format_of_plan(techniques)
    while (
        format_name
        and reference.precision
        and len(control) < DRAWS
        and report.faults
        and report.faults == report.by_rounding
    ):
        drawn, appeal = _control(bench, format_name, len(control), reference.precision, reserve_seconds)
        if not drawn and control:
            bench.say(f"{plan.key}: no other draw of a control: {appeal}")
            break  # what the first showed stands
        if not drawn:
            return _undecided(bench, plan, report, format_name.upper(), appeal)
        control.append(drawn)
        report = judged()
    # a plan that is refused already is not worth another process
    if bench.discovery.random and not report.faults and not why:
        random, why = _told(bench, f"guard:random:{plan.key}", plan, _random_trial())
        if why:
            unchecked.append(f"dropout: {why}")
        elif not all_of(random, "dropout") and not all_of(reference.random, "dropout"):
            unchecked.append("dropout: no model was called in training")
        report = judged(random)
    bench.note("guarded", {"plan": plan.key, "seconds": report.seconds, "report": to_plain(report)})
    bench.say(f"{plan.key}: guard: {'refused: ' if report.faults else ''}{text_of(report)}")
    return report


def _control(
    bench: Bench, format_name: str, draw: int, precision: str, reserve_seconds: float
) -> tuple[Told, str]:
    """(what the rounding of a format alone does to the program, why that is not known or empty)."""
    key = f"guard:control:{format_name}" + (f":{draw + 1}" if draw else "")
    why = ""
    tries = [(precision, key)]
    if precision == "float64":
        # FP32 is as good as exact beside fewer bits, and takes half the memory
        tries.append(("float32", f"{key}:fp32"))
    for tried, name in tries:
        if _trial(bench, name) is None:
            needed, left = _control_seconds(bench, tried), max(0.0, bench.left() - reserve_seconds)
            if needed > left:
                late = f"it needs about {needed:.0f} s, and the budget has {left:.0f} s for it"
                return (), why or f"{late}: a larger --budget allows it"
            bench.say(f"what the rounding of {format_name.upper()} alone does to the gradients")
        trial = replace(_trial_of(bench, "control", precision=tried), rounding=format_name, draw=draw)
        if draw:
            trial = replace(trial, fewer_bits=FEWER_BITS)
        told, reason = _told(bench, name, Plan(), trial)
        if not reason and all_of(told, "gradients"):
            return told, ""
        why = why or reason or "it told nothing"
    return (), why


def _control_seconds(bench: Bench, precision: str) -> float:
    """As long as the truth took, and half of it more: what is rounded is copied."""
    known = bench.trials.get("guard:truth" if precision == "float64" else "guard:truth32")
    if known is not None:
        return 1.5 * known.seconds
    steps = _last_step(points_of(bench))
    return bench.start_seconds(Plan()) + 1.5 * steps * bench.baseline_step_seconds


def _undecided(bench: Bench, plan: Plan, report: GuardReport, format_name: str, why: str) -> GuardReport:
    """Of a plan whose findings may be rounding, where that could not be asked: ``by_rounding`` keeps
    them. Not noted: it may be asked again."""
    text = (
        f"the rounding of {format_name} alone may explain what the guard found, and the control that could "
        f"tell did not run ({why}). Found: {text_of(report)}"
    )
    bench.say(f"{plan.key}: guard: undecided: {text}")
    points = tuple(replace(one, passed=one.passed or None) for one in report.points)
    return replace(
        report,
        passed=None,
        faults=(),
        points=points,
        unchecked=(*report.unchecked, text),
    )


def undecided_text(report: GuardReport | None) -> str:
    """Why a plan is not taken whose findings could be rounding, and that no control has cleared; empty
    where it is not so."""
    if report is None or report.faults or not report.by_rounding:
        return ""
    return f"not taken: {report.unchecked[-1]}"


def make_reference(bench: Bench) -> Reference:
    """The untouched program's guard trials and the truth, once for a search."""
    if bench.guard_reference is not None:
        return bench.guard_reference
    assert bench.discovery is not None
    began = bench.clock()
    _clear(bench)
    trials = {f"guard:{role}": _trial_of(bench, role) for role in REFERENCE_ROLES}
    running = _start_together(bench, trials)
    unchecked: list[str] = []
    baseline, why = _told(bench, "guard:baseline", Plan(), trials["guard:baseline"], running)
    if why or not baseline:
        for process in running.values():
            process.close()
        reason = f"the untouched program could not be guarded: {why or 'it told nothing'}"
        reference = Reference(baseline=(), unchecked=(reason,))
    else:
        truth, precision = _truth(bench, running, unchecked)
        again, why = _told(bench, "guard:again", Plan(), trials["guard:again"], running)
        if why:
            unchecked.append(f"a second unchanged run: {why}")
        random: Told = ()
        if bench.discovery.random:
            random, why = _told(bench, "guard:random:baseline", Plan(), _random_trial())
            if why:
                unchecked.append(f"dropout: {why}")
        unchecked += notes(baseline)
        reference = Reference(
            baseline=baseline,
            truth=truth,
            again=again,
            random=random,
            precision=precision,
            unchecked=tuple(unchecked),
            seconds=bench.clock() - began,
        )
    bench.note("guard reference", {"seconds": reference.seconds, "precision": reference.precision})
    bench.guard_reference = reference
    return reference


def _truth(bench: Bench, running: Mapping[str, Process], unchecked: list[str]) -> tuple[Told, str]:
    """(what the truth told, its precision)."""
    told, why = _told(bench, "guard:truth", Plan(), _trial_of(bench, "truth"), running)
    if not why and all_of(told, "gradients"):
        return told, "float64"
    first = why or "it told nothing"
    bench.say(f"no truth in FP64 ({first}): in FP32 without TF32", milestone=True)
    told, why = _told(bench, "guard:truth32", Plan(), _trial_of(bench, "truth", precision="float32"))
    if not why and all_of(told, "gradients"):
        return told, "float32"
    folder = bench.runner.guard_folder
    if folder is not None:
        (folder / "ended-truth").touch()  # nobody need wait for it
    unchecked.append(
        f"there is no truth to compare with: in FP64, {first}; in FP32, {why or 'nothing told'}"
    )
    return (), ""


def forget_files(bench: Bench) -> None:
    """At the end of a search: several copies of the program's weights."""
    folder = bench.runner.guard_folder
    if folder is not None:
        for path in folder.iterdir():
            path.unlink(missing_ok=True)


def _clear(bench: Bench) -> None:
    """Files of an earlier search, the weights of a later step apart, which the timed baseline has just
    written."""
    folder = bench.runner.guard_folder
    if folder is not None and _trial(bench, "guard:baseline") is None:
        for path in folder.iterdir():
            if path.name != LATE:
                path.unlink(missing_ok=True)


def _trial_of(bench: Bench, role: str, *, precision: str = "float64", truth: bool = True) -> GuardTrial:
    scaled = bench.discovery is not None and bench.discovery.grad_scaler
    return GuardTrial(
        role=role,
        points=points_of(bench),
        updates=UPDATES_OF_SCALED if scaled else UPDATES,
        precision=precision,
        truth=truth,
    )


def _random_trial() -> GuardTrial:
    return GuardTrial(role="random")


def _trial(bench: Bench, key: str) -> Outcome | None:
    known = bench.trials.get(key)
    return known.outcome if known is not None else None


def _start_together(bench: Bench, trials: Mapping[str, GuardTrial]) -> dict[str, Process]:
    """Processes whose start overlaps, as many as memory holds; the rest is started when its turn comes."""
    waiting = {key: trial for key, trial in trials.items() if _trial(bench, key) is None}
    count = _make_room(bench, [_size(bench, trial) for trial in waiting.values()])
    return {key: _start(bench, key, Plan(), trial) for key, trial in list(waiting.items())[: max(1, count)]}


def _make_room(bench: Bench, sizes: Sequence[Outcome]) -> int:
    """Close idle processes until the first of these fits, and more of them where that costs nothing; how
    many fit now. What is closed is started again when it is needed."""
    count = _fitting(bench, bench.live, sizes)
    if count < len(sizes):
        bench.ahead.keep_only()  # what has not had its turn yet goes first
        count = _fitting(bench, bench.live, sizes)
    while sizes and not count:
        idle = next((process for process in bench.live if process.alive), None)
        if idle is None:
            return 0
        idle.close()
        count = _fitting(bench, bench.live, sizes)
    if count == len(sizes) or bench.aligned or not bench.ahead.possible:
        return count
    # the idle untouched program is started again beside another process, at no cost, unless it has to take
    # the same steps as the other side
    without = [process for process in bench.live if process.plan or not process.timed]
    if _fitting(bench, without, sizes) > count:
        for process in [one for one in bench.live if one not in without]:
            process.close()
        count = _fitting(bench, bench.live, sizes)
    return count


def _fitting(bench: Bench, live: Sequence[Process], sizes: Sequence[Outcome]) -> int:
    """How many of the first fit beside those that live; one alone where none runs beside its like."""
    held = [process.shown() for process in live if process.alive]
    if not bench.resident:
        return 0 if held else len(sizes[:1])
    return next(
        (count for count in range(len(sizes), 0, -1) if bench.fits(*held, *sizes[:count])),
        0,
    )


def _size(bench: Bench, trial: GuardTrial) -> Outcome:
    """The memory that a guard trial is taken to need: float64 takes twice as much and what its operators
    work with, and a control keeps what it has rounded."""
    assert bench.baseline is not None
    exact = trial.role in ("truth", "control") and trial.precision == "float64"
    factor = (FLOAT64_MEMORY if exact else 1.0) * (2.0 if trial.role == "control" else 1.0)
    return replace(
        bench.baseline,
        peak_bytes=int(factor * bench.baseline.peak_bytes),
        host_peak_bytes=int(factor * bench.baseline.host_peak_bytes),
    )


def _start(bench: Bench, key: str, plan: Plan, trial: GuardTrial) -> Process:
    off = _without_randomness(bench, trial)
    return bench.start(key, plan, reference_role=None, randomness_off=off, guard=trial)


def _without_randomness(bench: Bench, trial: GuardTrial) -> bool:
    """A program that draws no random numbers compiles to the graphs that are in the cache already."""
    draws = bench.discovery is None or bench.discovery.random
    return draws and trial.role != "random"


def _told(
    bench: Bench,
    key: str,
    plan: Plan,
    trial: GuardTrial,
    running: Mapping[str, Process] | None = None,
) -> tuple[Told, str]:
    """(what a guard trial told, why it did not come to its end or empty). From the ledger where it is."""
    known = _trial(bench, key)
    if known is None:
        process = (running or {}).get(key)
        if process is None:
            if not bench.ahead.has(key):
                _make_room(bench, [_size(bench, trial)])
            process = _start(bench, key, plan, trial)
        known = _walk(process, trial)
        _note_crowded(bench, key, trial, known)
    elif bench.ahead.has(key):
        bench.ahead.take(key, plan, trial)  # it failed on its way, before anybody asked for it
        _note_crowded(bench, key, trial, known)
    known = _alone(bench, key, plan, trial, known)
    if known.state is State.FAILED:
        return known.guarding, known.reason or known.error or "it failed"
    return known.guarding, ""


def _note_crowded(bench: Bench, key: str, trial: GuardTrial, outcome: Outcome) -> None:
    """Where it died beside others, for want of memory or as programs do where it is short. Written down: a
    search that goes on must not ask who lives then."""
    starved = outcome.error == "OutOfMemory" or (outcome.error == "ProgramCrashed" and not outcome.steps)
    others = sum(process.alive for process in bench.live)
    if outcome.state is State.FAILED and starved and others and trial.role not in REFERENCE_ROLES:
        bench.note("crowded", {"key": key})
        bench.say(f"{key} died beside {others} others ({outcome.reason}): once more alone")


def _alone(bench: Bench, key: str, plan: Plan, trial: GuardTrial, known: Outcome) -> Outcome:
    """A trial that died beside others, once more by itself; any other as it is known."""
    again = _trial(bench, nth(key, 2))
    if again is not None:
        return again
    if not any(event.data["key"] == key for event in bench.ledger.events(bench.search, "crowded")):
        return known
    bench.clear()
    return _walk(_start(bench, key, plan, trial), trial)


def _walk(process: Process, trial: GuardTrial) -> Outcome:
    steps = _last_step(trial.points) or RANDOM_STEPS
    try:
        while process.steps < steps:
            process.advance(steps - process.steps)
        outcome = replace(process.completed(), step_seconds=(), profile=None)
        process.record(outcome)
        process.close()
    except SessionEnded as end:
        return end.outcome
    return outcome
