"""The untouched program first: what it is, how fast, how steady, and how far two of its runs agree."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from flatout import errors
from flatout.codec import from_plain, to_plain
from flatout.errors import FlatoutError
from flatout.guard.gradients import agreement_text, own_agreement_db
from flatout.pace import pace_of, wait_of, waits
from flatout.plan import Plan
from flatout.runners import SessionEnded
from flatout.search.bench import SLOW_STEP_SECONDS, WARM_UP_STEPS, Bench, Process
from flatout.search.limits import CAUSES, find_limits
from flatout.search.measure import (
    LEAST_COUNTED_STEPS,
    TURN_SECONDS,
    Beaten,
    Seat,
    warm_up,
)
from flatout.search.progress import Phase
from flatout.search.prove import APART, RESIDENT, Aim, prove
from flatout.search.record import baseline_outcome, key_of, latest, nth
from flatout.search.shifts import AGAIN, ALIGNED, evidence_so_far, logs_of, taken_alike, unchanged
from flatout.sequential import mixture_of, typical_shift
from flatout.stats import autocorrelation_time, median, trend_p_value
from flatout.surroundings import Usual
from flatout.trial import Call, Outcome, State, Verdict

DISCOVERY_STEPS = 40
MEASURED_SECONDS = 5.0
MEASURED_STEPS = 16
LEAST_FOR_CORRELATION = 50
"""Steps: an autocorrelation of fewer is mostly noise."""
AGAIN_PROCESSES = 3
"""Unchanged processes beside the first, at most."""
AGAIN_PAIRS = 10
"""Pairs of turns with each of them, at most."""
AGAIN_QUIET_PAIRS = 4
"""Where each of them says the same: of processes there is then more to learn from another one."""
DRIFT_P = 0.01
"""Chance under which a trend in the ratios of two unchanged processes is taken for one."""
AGAIN_SHARE = 0.15
"""Of the whole budget."""
SECOND_AGAIN_SHARE = 0.2
"""With the second of them: while one difference is known, one pair of processes proves little."""
AGAIN_SLOW_STEP_SECONDS = 0.12
"""From there on a pair of turns takes a second, and fewer are taken:"""
AGAIN_SLOW_PAIRS = 6
"""with the first of them,"""
AGAIN_SLOW_LATER_PAIRS = 4
"""with each of the others."""

FUSED_ATTENTION = re.compile(r"flash|fmha|sdpa|scaled_dot_product_(flash|efficient|cudnn)|mem_eff")
"""In the names of kernels and operators of torch's fused attention, cuDNN's and xFormers'."""

HINTS = {
    "ProgramCrashed": "Run the command by itself first: it has to work without flatout.",
    "NeverStepped": "flatout needs a program that trains with torch: check that this command gets as far "
    "as a training step within the time allowed.",
    "TooFewSteps": "Let it train for more steps (its own option for epochs or iterations).",
    "NeedsInput": "Give it what it asks for as an argument or a file; it is started without a terminal.",
    "WroteTooMuch": "Let it write less while searching (its options for checkpoints and logs).",
    "Hung": "If it needs longer to its first step, say so with a larger --budget.",
    "OutOfMemory": "Free the device's or host's memory, or make the batch or model smaller.",
    "DetachedProgram": "Start the training program itself, in the foreground.",
    "AgentDidNotEnter": "Give the command that starts Python itself, without -S; "
    "`flatout doctor -- COMMAND` says what is in the way.",
    "TorchUnsupported": "Install torch 2.4 or later where this command's Python finds it.",
    "DiskFull": "Free some space, or give another folder with --out.",
}


def error_of(outcome: Outcome) -> FlatoutError:
    """The error in errors.py that tells the end of the untouched program best."""
    name = outcome.error or ("ProgramCrashed" if outcome.state is State.FAILED else "NeverStepped")
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, FlatoutError)):
        kind = errors.ProgramCrashed
    reason = outcome.reason or f"the program ended with exit code {outcome.exit_code}"
    return kind(reason, hint=HINTS.get(name, ""), child_error=outcome.child_error)


def measure_baseline(bench: Bench) -> Seat:
    """Discover, warm up, time and profile the untouched program; its seat, kept warm where possible.

    Fills the bench's discovery and baseline figures. Raises what ends the search (errors.py).
    """
    seat = Seat(bench=bench, plan=Plan(), key="baseline")
    events = bench.ledger.events(bench.search)
    short = any(event.kind == "short" for event in events)
    known = baseline_outcome(bench.trials, [e for e in events if e.kind == "baseline"])
    if known is not None and (not short or any(event.kind == "baseline" for event in events)):
        _adopt(bench, known)
        return seat
    bench.phase = Phase.BASELINE
    process = bench.start("baseline", Plan(), reference_role="save")
    try:
        outcome = _watch(bench, process)
        seat.process = process
    except SessionEnded as end:
        outcome = _short_program(bench, end.outcome)
    _adopt(bench, outcome)
    bench.say(
        f"untouched: {bench.baseline_step_seconds * 1e3:.4g} ms a step on {outcome.discovery.device}"
        if outcome.discovery
        else "untouched program measured",
        milestone=True,
    )
    return seat


def measure_again(bench: Bench, baseline: Seat) -> None:
    """Further unchanged processes beside the first: how far two equal things seem apart on this machine.

    Several where the budget allows, one after another: what one says of the processes' spread may be luck.
    """
    bench.phase = Phase.NOISE
    for event in bench.ledger.events(bench.search, "usual"):
        bench.usual = from_plain(Usual, event.data)
    first = bench.verdicts.get(AGAIN)
    # alternating processes have many such trials for one comparison
    trial = bench.trials.get(AGAIN) if bench.resident else latest(bench.trials, AGAIN)
    if first is None or trial is None:
        if not _affords_again(bench, 0):
            return
        _start_ahead(bench)
        compared = _once_again(bench, AGAIN, baseline, AGAIN_SLOW_PAIRS, 1)
        if compared is None:
            return
        first, outcome = compared
    else:
        outcome = trial.outcome
    _learn_noise(bench, first, outcome)
    while bench.resident:  # else each of its pairs were fresh processes already
        same_place = [one for one in bench.verdicts.values() if taken_alike(one) or not bench.aligned]
        done = sum(unchanged(one) for one in same_place)
        if done >= AGAIN_PROCESSES or not _affords_again(bench, done + bench.aligned):
            break
        key = nth(ALIGNED if bench.aligned else AGAIN, done + 1)
        compared = _once_again(bench, key, baseline, AGAIN_SLOW_LATER_PAIRS, _compared(bench) + 1)
        if compared is None:
            break
        _align_where_needed(bench, compared[0])
    bench.ahead.keep_only()
    _learn_spread(bench)


def _start_ahead(bench: Bench) -> None:
    """As many of them as the budget allows for, where several may start at once."""
    plans = {}
    for number in range(1, AGAIN_PROCESSES + 1):
        warm_up = WARM_UP_STEPS * bench.baseline_step_seconds
        seconds = bench.start_seconds(Plan()) + number * (warm_up + _seconds_once_again(bench))
        if seconds > _again_share(number - 1) * bench.options.budget_seconds:
            break
        plans[nth(AGAIN, number)] = Plan()
    if bench.ahead.room() > 1:
        bench.ahead.start_all(plans)


def _compared(bench: Bench) -> int:
    return sum(unchanged(one) for one in bench.verdicts.values())


def _again_share(before: int) -> float:
    return SECOND_AGAIN_SHARE if before == 1 else AGAIN_SHARE


def _seconds_once_again(bench: Bench) -> float:
    """Estimate of one comparison, the start of its process apart."""
    return AGAIN_QUIET_PAIRS * max(2 * TURN_SECONDS, 8 * bench.baseline_step_seconds)


def _affords_again(bench: Bench, before: int) -> bool:
    waits = bench.ahead.has(nth(AGAIN, _compared(bench) + 1))
    needed = _seconds_once_again(bench) + (0.0 if waits else bench.start_seconds(Plan()))
    if not before:
        if bench.left() >= needed:
            return True
        _unrepeated(bench, needed)
        return False
    # of a search before such times were written down, its trials tell
    told = [event.data["seconds"] for event in bench.ledger.events(bench.search, "compared again")]
    trials = [trial.seconds for name, trial in bench.trials.items() if key_of(name) == AGAIN]
    spent: float = sum(told or trials)
    return spent + needed <= _again_share(before) * bench.options.budget_seconds


def _unrepeated(bench: Bench, seconds: float) -> None:
    bench.note("unrepeated", {"needed": seconds})
    bench.say("no time for a second unchanged run: its noise is not known", milestone=True)


def _once_again(
    bench: Bench, key: str, baseline: Seat, slow_pairs: int, number: int
) -> tuple[Verdict, Outcome] | None:
    """One more unchanged process, its ``number``, against the first; None where the budget ended first."""
    began = bench.clock()
    slow = bench.baseline_step_seconds >= AGAIN_SLOW_STEP_SECONDS
    aim = Aim(
        alpha=1.0 - bench.options.confidence,
        matters=0.0,
        turns=slow_pairs if slow else AGAIN_PAIRS,
        first_look=AGAIN_QUIET_PAIRS,
        processes=1,
        to_the_end=True,
        quiet_turns=AGAIN_QUIET_PAIRS,
        processes_differ=False,
        limit_seconds=AGAIN_SHARE * bench.options.budget_seconds,
        least=2,
    )
    again = Seat(bench=bench, plan=Plan(), key=nth(AGAIN, number))
    try:
        compared = _compare_again(bench, key, baseline, again, aim)
        bench.note("compared again", {"key": key, "seconds": bench.clock() - began})
        return compared
    except Beaten as beaten:
        bench.kill_all()
        if beaten.outcome.error == "Hung" and bench.left() <= 0.0:
            _unrepeated(bench, bench.clock() - began)
            return None
        error = error_of(beaten.outcome)
        error.message = f"a second run of the untouched program failed: {error.message}"
        raise error from beaten
    finally:
        again.close()


def _watch(bench: Bench, process: Process) -> Outcome:
    """Discovery, warm-up, blocks, one profiled step; its trial is written, the process goes on."""
    process.advance(1)
    bench.say("the untouched program takes its first steps")
    while process.discovery is None and process.steps < DISCOVERY_STEPS:
        process.advance(3)
    if process.discovery is None:
        process.close()
        raise errors.NeverStepped(
            f"after {process.steps} steps it was still not clear what one training step of this program is",
            hint=HINTS["NeverStepped"],
        )
    bench.discovery = process.discovery
    warm_up(bench, process)
    warm_counted = len(process.counted)
    step = median(process.counted[-9:]) if process.counted else 0.1
    if step < SLOW_STEP_SECONDS:
        steps = max(MEASURED_STEPS, min(2000, math.ceil(MEASURED_SECONDS / max(step, 1e-6))))
    else:
        steps = 5 if step < 5 * SLOW_STEP_SECONDS else 3
    bench.say(f"timing {steps} steps of the untouched program")
    block = process.advance(steps)
    counted = tuple(process.counted[warm_counted:])
    profile = process.profile()
    outcome = process.completed()
    outcome = replace(
        outcome,
        profile=profile or outcome.profile,
        discovery=outcome.discovery or bench.discovery,
        step_seconds=counted,
        loader_wait_seconds_per_step=wait_of(block),
    )
    outcome = with_attention(outcome)
    if not process.settled:
        outcome = replace(outcome, notes=(*outcome.notes, "its step times never came to rest"))
    process.record(outcome)
    return outcome


def _short_program(bench: Bench, outcome: Outcome) -> Outcome:
    """It ended before all that was done. If by itself and after enough steps, what it has shown must do;
    a second process, warmed up sparingly, is profiled."""
    if outcome.state is not State.COMPLETED or outcome.error:
        raise error_of(outcome)
    if outcome.steps == 0:
        raise error_of(replace(outcome, error="NeverStepped"))
    least = LEAST_COUNTED_STEPS + 3
    if outcome.steps < least or outcome.discovery is None:
        raise errors.TooFewSteps(
            f"the program ended by itself after {outcome.steps} training steps; {least} are needed",
            hint=HINTS["TooFewSteps"],
        )
    bench.discovery = outcome.discovery
    bench.program_steps = outcome.steps
    bench.note("short", {"steps": outcome.steps})
    process = bench.start("baseline", Plan(), reference_role="save")
    try:
        warm_up(bench, process)
        block = process.advance(max(LEAST_COUNTED_STEPS + 1, (outcome.steps - process.steps) // 2))
        counted = block.step_seconds
        wait = wait_of(block)
        profile = process.profile() if process.steps + 2 <= outcome.steps else None
        shown = process.peek()
    except SessionEnded as end:
        counted = tuple(process.counted[-max(LEAST_COUNTED_STEPS, len(process.counted) // 2) :])
        shown, profile, wait = end.outcome, None, end.outcome.loader_wait_seconds_per_step
    if len(counted) < LEAST_COUNTED_STEPS:
        raise errors.TooFewSteps(
            f"the program ended by itself after {outcome.steps} training steps, of which only "
            f"{len(counted)} could be timed",
            hint=HINTS["TooFewSteps"],
        )
    measured = replace(
        shown,
        state=State.COMPLETED,
        discovery=shown.discovery or bench.discovery,
        step_seconds=counted,
        losses=outcome.losses or shown.losses,
        recompiles=max(outcome.recompiles, shown.recompiles),
        graph_breaks=max(outcome.graph_breaks, shown.graph_breaks),
        profile=profile or shown.profile or outcome.profile,
        loader_wait_seconds_per_step=wait,
        steps=max(outcome.steps, shown.steps),
        startup_seconds=shown.startup_seconds or outcome.startup_seconds,
    )
    measured = with_attention(measured)
    if process.alive:
        process.close()
    # the record of what was learnt from both
    bench.note("baseline", {"outcome": to_plain(measured)})
    return measured


def with_attention(outcome: Outcome) -> Outcome:
    """The outcome with a fused attention that only its profile shows, as inside a compiled graph."""
    discovery, profile = outcome.discovery, outcome.profile
    if discovery is None or profile is None or discovery.attention != "none":
        return outcome
    if not any(FUSED_ATTENTION.search(name) for name, _, _ in (*profile.kernels, *profile.operators)):
        return outcome
    already = {**discovery.already, "sdpa": "fused attention kernels in its profile"}
    return replace(outcome, discovery=replace(discovery, attention="sdpa", already=already))


def _adopt(bench: Bench, outcome: Outcome) -> None:
    assert outcome.discovery is not None
    bench.baseline = outcome
    bench.discovery = outcome.discovery
    bench.waiting = waits(outcome)
    bench.baseline_step_seconds = pace_of(outcome)
    bench.baseline_losses = outcome.losses
    if len(outcome.step_seconds) >= LEAST_FOR_CORRELATION:
        bench.correlation = autocorrelation_time(outcome.step_seconds[-2000:])
    size = max(1, min(len(outcome.step_seconds) // 4, math.ceil(0.5 / bench.baseline_step_seconds)))
    times = outcome.step_seconds
    bench.block_medians = [bench.pace(times[i : i + size]) for i in range(0, len(times) - size + 1, size)]
    if any("never came to rest" in note for note in outcome.notes):
        _align(bench, "its step times never come to rest")
    for _ in bench.ledger.events(bench.search, "aligned"):
        bench.aligned = True
    for event in bench.ledger.events(bench.search, "short"):
        bench.program_steps = int(event.data["steps"])
    for _ in bench.ledger.events(bench.search, "apart"):
        bench.resident = False
    limits = find_limits(
        outcome.profile,
        step_seconds=bench.baseline_step_seconds,
        loader_wait_seconds=outcome.loader_wait_seconds_per_step,
        discovery=outcome.discovery,
        techniques=bench.catalogue,
    )
    if limits:
        first = limits[0]
        words = CAUSES.get(first.cause, first.cause)
        bench.say(f"limited by {words} ({first.share:.0%}): {first.evidence}", milestone=True)


def _align(bench: Bench, why: str) -> None:
    bench.aligned = True
    bench.note("aligned", {"reason": f"{why}: in every comparison both sides take the same steps"})


def _compare_again(
    bench: Bench, key: str, baseline: Seat, again: Seat, aim: Aim
) -> tuple[Verdict, Outcome]:
    assert bench.baseline is not None
    if bench.resident and not bench.holds(bench.baseline, bench.baseline):
        bench.alternate("two processes do not fit into memory side by side")
    verdict = prove(bench, key, baseline, again, aim)
    process = again.process
    if process is not None and process.alive:
        outcome = replace(process.completed(), step_seconds=tuple(process.counted))
        process.record(outcome)
    else:
        trial = latest(bench.trials, AGAIN)
        assert trial is not None
        outcome = trial.outcome
    bench.add_verdict(verdict)
    return verdict, outcome


def _learn_noise(bench: Bench, verdict: Verdict, outcome: Outcome) -> None:
    bench.floor = outcome.gradients
    bench.again_losses = outcome.losses
    if verdict.ratio is not None:
        bench.block_medians += list(verdict.samples_a) + list(verdict.samples_b)
    _align_where_needed(bench, verdict)
    own = own_agreement_db(outcome.gradients)
    apart = f"{abs(verdict.ratio - 1):.2%} apart" if verdict.ratio is not None else "not compared"
    agree = "equal gradients" if own is None else f"gradients {agreement_text(own)}"
    surprise = "" if verdict.call in (Call.SAME, Call.UNKNOWN) else " (more than their blocks explain)"
    bench.say(f"two unchanged runs: {apart}{surprise}, {agree}", milestone=True)


def _align_where_needed(bench: Bench, verdict: Verdict) -> None:
    """Where unchanged processes differ, or drift apart, it may be because the first has come further."""
    if bench.aligned or verdict.ratio is None or verdict.method != RESIDENT:
        return
    apart = abs(verdict.ratio - 1.0)
    drift = any(trend_p_value(values)[1] < DRIFT_P for values in logs_of(verdict))
    differ = verdict.call in (Call.BETTER, Call.WORSE)
    if (differ or drift) and apart > bench.options.gain_that_matters:
        _align(bench, f"two unchanged runs at different steps are {apart:.1%} apart")


def _learn_spread(bench: Bench) -> None:
    """How far processes of one plan differ, as far as it is known before any candidate."""
    method = RESIDENT if bench.resident else APART
    known = evidence_so_far(bench.verdicts.values(), method=method)
    count = sum(one.freedom for one in known)
    if count:
        bench.process_noise = typical_shift(mixture_of(known))
        noise = math.sqrt(sum(one.freedom * one.within for one in known) / count)
        text = (
            f"how far processes of one plan differ is hidden by the noise of their turns, {noise:.1%}"
            if noise > 2.0 * bench.process_noise
            else f"processes of one plan are taken to differ by about {bench.process_noise:.1%}"
        )
        bench.say(f"{text} ({count + 1} compared)", milestone=True)
