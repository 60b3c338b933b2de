"""The search as a whole: from an unknown training command to a proved plan.

Baseline, noise, screening, climb, last proof, shares. Everything learnt goes to the ledger at once, so
that a search that was killed goes on from it: given the same trials it decides the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from flatout import __version__
from flatout.errors import FlatoutError, UsageError
from flatout.fingerprint import file_sha256, find_script, fingerprint
from flatout.host import Host, Interpreter
from flatout.ledger import Ledger
from flatout.plan import Choice, Plan
from flatout.ratios import times
from flatout.report import Report, build_report
from flatout.runners import Runner
from flatout.search.allowance import Allowance
from flatout.search.baseline import measure_again, measure_baseline
from flatout.search.bench import Bench
from flatout.search.climb import Climb, eclipsed, expected_gain, note_decision
from flatout.search.final import prove_final
from flatout.search.guarding import forget_files
from flatout.search.judge import Fault
from flatout.search.last_profile import profile_last
from flatout.search.measure import Seat
from flatout.search.options import SearchOptions
from flatout.search.progress import Phase, Progress
from flatout.search.prune import prune
from flatout.search.quality import measure_quality, reserved_seconds, say_cost
from flatout.search.screen import SCREEN_SECONDS, SCREEN_STEPS, screen
from flatout.search.shares import measure_shares
from flatout.search.standing import Standing
from flatout.surroundings import Watcher
from flatout.technique import Effect, Technique
from flatout.techniques import technique_named
from flatout.techniques.order import conflict
from flatout.trial import Call
from flatout.workload import Workload

DEAR_START_SECONDS = 15.0
"""Beyond the untouched program's start: compiling."""
LUCK = 0.2
"""Gain beyond what the luckiest of some processes would show of itself."""
CLOSE = 0.8
"""Of the gain alone of the one that was preferred: from there on an alternative is tried in its place."""
DEAR_LAST_ROOM = 1.2
"""Times what the candidates and their guard are expected to take."""
SAME_RETRY = 1 / 3
"""Of what a second try may cost, for one that was proved to make no difference."""
SCREENING_SHARE = 0.9
"""Of the budget left: screening and climb must be expected to fit, else nothing is screened."""


def search(  # noqa: PLR0917 - the nouns of a search, in the order of the command
    workload: Workload,
    host: Host,
    interpreter: Interpreter,
    runner: Runner,
    ledger: Ledger,
    options: SearchOptions,
    tell: Callable[[Progress], None] = lambda _: None,
    *,
    catalogue: Sequence[Technique] | None = None,
    clock: Callable[[], float] = time.monotonic,
    watcher: Callable[[Host, str, int], Watcher] | None = None,
) -> Report:
    """Find and prove a plan for ``workload``; its report.

    ``watcher`` makes what reads the surroundings of the turns, from the host, the device and the number of
    ranks; None: nothing is read.

    Ctrl-C ends every process and returns the report of what was proved so far, its ``state``
    ``interrupted``. Raises what the untouched program's own failure is called in errors.py, UsageError
    for a technique that does not exist, LedgerError and DiskFull; the ledger then holds why.
    """
    if catalogue is None:
        from flatout.techniques import TECHNIQUES

        catalogue = TECHNIQUES
    check_options(options, catalogue)
    mark = fingerprint(workload, host, interpreter)
    number = None if options.fresh else ledger.resume_search(fingerprint=mark, options=options)
    resumed = number is not None
    if number is None:
        number = ledger.start_search(
            fingerprint=mark,
            workload=workload,
            host=host,
            interpreter=interpreter,
            options=options,
            version=__version__,
        )
    bench = Bench(
        runner=runner,
        ledger=ledger,
        search=number,
        host=host,
        interpreter=interpreter,
        options=options,
        catalogue=catalogue,
        tell=tell,
        clock=clock,
        unix_time=time.time,
        watcher=watcher,
    )
    bench.note("folder", {"path": str(ledger.path.parent.resolve())})
    script = find_script(workload)
    if script is not None:
        # as it is now: whoever edits it while this goes on has a plan for what it was
        bench.note("script", {"path": str(script), "sha256": file_sha256(script)})
    if resumed:
        bench.note(
            "resumed", {"trials": len(bench.trials), "verdicts": len(bench.verdicts), "at": time.time()}
        )
        bench.say(f"going on from {len(bench.trials)} trials of an unfinished search", milestone=True)
    try:
        _search(bench)
        bench.kill_all()
        ledger.set_state(number, "finished")
    except KeyboardInterrupt:
        bench.kill_all()
        bench.note("interrupted", {"at": bench.elapsed()})
        ledger.set_state(number, "interrupted")
    except FlatoutError as error:
        bench.kill_all()
        bench.note(
            "failure",
            {
                "error": type(error).__name__,
                "message": error.message,
                "hint": error.hint,
                "child_error": error.child_error,
            },
        )
        ledger.set_state(number, "failed")
        raise
    finally:
        bench.close()
    bench.phase = Phase.DONE
    report = build_report(ledger, number)
    bench.say(report.conclusion, milestone=True)
    return report


def check_options(options: SearchOptions, catalogue: Sequence[Technique]) -> None:
    """UsageError for what the options ask of techniques that there are not, or cannot be asked of them."""
    for given in (*options.only, *options.without, *options.allow):
        technique_named(given, catalogue, error=UsageError)
    if options.only and not set(options.only) - set(options.without):
        raise UsageError(
            "--without leaves nothing of what --only names",
            hint="Take one of the two options away; `flatout techniques` lists what there is.",
        )
    for given in options.allow:
        effect = technique_named(given, catalogue).effect
        if effect is not Effect.RECIPE:
            raise UsageError(
                f"{given} needs no leave: it does not change the recipe (its effect is {effect})",
                hint=f"Leave --allow recipe:{given} away.",
            )


def _search(bench: Bench) -> None:
    baseline = measure_baseline(bench)
    _note_catalogue(bench)
    choices = _candidates(bench)
    bench.total = len(bench.catalogue)
    bench.reserved_seconds = reserved_seconds(bench)
    say_cost(bench)
    if choices:
        measure_again(bench, baseline)
        bench.note_held_use()
    allowance = Allowance(error=1.0 - bench.options.confidence, candidates=len(choices))
    climb = Climb(bench, baseline, allowance)
    going_on, set_aside = _screen_all(bench, climb, choices)
    _climb_all(bench, climb, going_on, set_aside)
    bench.ahead.keep_only(baseline.key)
    bench.phase = Phase.PROVING
    prove_final(bench, climb, alpha=allowance.final)
    bench.phase = Phase.SHARES
    measure_shares(bench, climb, alpha=allowance.share)
    prune(bench, climb, alpha=allowance.final)
    profile_last(bench, climb.best)
    for seat in (climb.kept, climb.best, climb.baseline):
        if seat is not None:
            seat.close()
    bench.reserved_seconds = 0.0
    measure_quality(bench, climb.best)
    forget_files(bench)


def _note_catalogue(bench: Bench) -> None:
    """What the report says of each technique, written down so that the ledger alone is enough."""
    discovery = bench.discovery
    assert discovery is not None
    rows = {}
    for name, technique in bench.catalogue.items():
        settings = technique.settings(discovery, bench.host)
        rows[name] = {
            "title": technique.title,
            "effect": technique.effect.value,
            "claimed": technique.claimed,
            "settings": settings,
            "by_hand": technique.by_hand(Plan(choices=(Choice(name=name, settings=settings),)), discovery),
        }
    bench.note("catalogue", rows)


def _candidates(bench: Bench) -> list[Choice]:
    """What can be tried here, in the order in which it is expected to gain; the rest is written down."""
    assert bench.discovery is not None
    options, discovery = bench.options, bench.discovery
    choices = []
    for technique in bench.catalogue.values():
        choice = Choice(name=technique.name, settings=technique.settings(discovery, bench.host))
        plan = Plan(choices=(choice,))
        left_out = technique.name in options.without or (
            options.only and technique.name not in options.only
        )
        if left_out:
            standing, reason = Standing.NOT_TRIED, "left out by --only or --without"
        elif technique.effect is Effect.RECIPE and technique.name not in options.allow:
            standing = Standing.NOT_TRIED
            reason = f"it changes the recipe of the training: only with --allow recipe:{technique.name}"
        elif technique.name in discovery.already:
            standing, reason = Standing.ALREADY, discovery.already[technique.name]
        else:
            unfit = technique.unfit(discovery, bench.host, bench.interpreter)
            if unfit is None:
                choices.append(choice)
                continue
            standing, reason = Standing.UNFIT, unfit
        bench.skip(f"skip:{technique.name}", plan, f"{standing}: {reason}")
        note_decision(bench, choice, standing, reason)
    return sorted(choices, key=lambda choice: -expected_gain(bench, choice.name, None))


def _to_screen(bench: Bench, climb: Climb, choices: list[Choice]) -> set[str]:
    """Names worth screening within the budget: all, or none. What is dear to start is not: it would start
    once more in the climb, where it comes last."""
    choices = [choice for choice in choices if _cannot_gain(bench, climb, choice) is None]
    step = bench.baseline_step_seconds
    measuring = max(SCREEN_SECONDS, SCREEN_STEPS * step)
    climbing = sum(climb.candidate_seconds(bench.plan_of([choice]), None) for choice in choices)
    room = SCREENING_SHARE * (bench.left() - climb.final_seconds()) - climbing
    starts = {
        choice.name: bench.start_seconds(bench.plan_of([choice]))
        for choice in choices
        if bench.extra_start(choice.name) <= DEAR_START_SECONDS
    }
    together = max(1, bench.ahead.room())
    starting = max(sum(starts.values()) / together, *starts.values(), 0.0)
    if len(choices) < 2 or len(starts) * measuring + starting > room:
        return set()
    return set(starts)


def _screen_all(bench: Bench, climb: Climb, choices: list[Choice]) -> tuple[list[Choice], list[Choice]]:
    """Candidates that go on to the climb, best first; and those set aside, being slower alone."""
    bench.phase = Phase.SCREENING
    known = {event.data["name"] for event in bench.ledger.events(bench.search, "screened")}
    order = next((event.data["order"] for event in bench.ledger.events(bench.search, "order")), None)
    screening = known if order is not None else _to_screen(bench, climb, choices) | known
    going_on = [choice for choice in choices if choice.name not in screening]
    set_aside: list[Choice] = []
    waiting = [choice for choice in choices if choice.name in screening]
    while waiting:
        plans = [bench.plan_of([choice]) for choice in waiting if choice.name not in known]
        bench.ahead.start_all(
            {f"screen:{plan.key}": plan for plan in plans}, reserve_seconds=climb.final_seconds()
        )
        choice = waiting.pop(0)
        screened, seat = screen(bench, choice, climb.final_seconds())
        if screened.fault is None:
            climb.screened[choice.name] = screened
            going_on.append(choice)
            if seat is not None:
                _keep_or_close(bench, climb, choice, seat)
            continue
        note_decision(bench, choice, screened.fault.standing, screened.fault.reason)
        going_on += _alternatives(bench, choice, screened.fault)
        if screened.fault.standing is Standing.NO_GAIN:
            set_aside.append(choice)
    if order is not None:  # as it was decided with the time left then
        going_on.sort(key=lambda choice: order.index(str(choice)) if str(choice) in order else len(order))
        return going_on, set_aside
    going_on.sort(key=lambda choice: -expected_gain(bench, choice.name, climb.screened.get(choice.name)))
    if DEAR_LAST_ROOM * climb.seconds_for(going_on) <= bench.left() - climb.final_seconds():
        # what is dear to start goes last: every plan with it pays its start again. Not where time is
        # short: then what may gain most comes first
        going_on.sort(key=lambda choice: bench.extra_start(choice.name) > DEAR_START_SECONDS)
    little = eclipsed(bench, going_on, climb.screened)
    going_on.sort(key=lambda choice: choice.name in little)
    bench.note("order", {"order": [str(choice) for choice in going_on]})
    return going_on, set_aside


def _keep_or_close(bench: Bench, climb: Climb, choice: Choice, seat: Seat) -> None:
    """Of the screened ones the fastest stays warm for the first comparison, where memory allows. Not one
    whose gain is so small that it may have been chosen for its process's luck, which would stay with it."""
    ratio = climb.screened[choice.name].ratio or 0.0
    if ratio < 1.0 + LUCK:
        seat.close()
        return
    kept = climb.kept
    if kept is not None:
        rival = climb.screened[kept.plan.names[0]].ratio or 0.0
        if ratio <= rival:
            seat.close()
            return
        kept.close()
        climb.kept = None
    assert seat.process is not None
    assert bench.baseline is not None
    shown = seat.process.peek()
    if bench.holds(bench.baseline, shown, shown):
        climb.kept = seat
    else:
        seat.close()


def _alternatives(bench: Bench, choice: Choice, fault: Fault | None) -> list[Choice]:
    """The same technique with other settings, where it was refused for recompiling without end. A
    declaration that has any says so in a method ``alternatives(discovery, recompiles=...)``."""
    if fault is None or not fault.recompiles:
        return []
    offer = getattr(bench.technique(choice.name), "alternatives", None)
    if offer is None:
        return []
    settings = [{**choice.settings, **more} for more in offer(bench.discovery, recompiles=fault.recompiles)]
    return [Choice(name=choice.name, settings=one) for one in settings if one != choice.settings]


def _cannot_gain(bench: Bench, climb: Climb, choice: Choice) -> str | None:
    """Why a candidate cannot gain what matters on top of the best plan so far, or None."""
    bound = bench.bound(choice.name, climb.best_step_seconds())
    if bound is None or bound.at_most >= 1.0 + bench.options.gain_that_matters:
        return None
    return bound.reason


def _climb_all(bench: Bench, climb: Climb, choices: list[Choice], set_aside: list[Choice]) -> None:
    """Each in its turn; then once more what a larger plan may have made worth it."""
    bench.phase = Phase.CLIMBING
    bounded: list[Choice] = []
    climb.waiting = list(choices)
    while climb.waiting:
        choice = climb.waiting.pop(0)
        reason = _cannot_gain(bench, climb, choice)
        if reason is None:
            _climb_one(bench, climb, choice)
        else:
            bounded.append(choice)
            note_decision(bench, choice, Standing.NO_GAIN, f"not tried: it can gain {reason}")
    for choice in bounded:
        # the rest of the step has become shorter since
        if _cannot_gain(bench, climb, choice) is None:
            _climb_one(bench, climb, choice)
    for choice in choices:
        decision = climb.decided.get(choice.name)
        if (
            decision is not None
            and decision.standing is Standing.NO_GAIN
            and decision.call in (Call.SAME, Call.UNKNOWN, Call.WORSE)
            and len(climb.best.plan.choices) > decision.grown_since
        ):
            share = SAME_RETRY if decision.call is Call.SAME else 1.0
            _try_again(bench, climb, decision.choice, share=share)
    if climb.best.plan:
        for choice in set_aside:
            _try_again(bench, climb, choice)
    for choice in choices:
        if choice.name not in climb.decided and _close_rival(bench, climb, choice):
            _try_again(bench, climb, choice, in_place=True)


def _close_rival(bench: Bench, climb: Climb, choice: Choice) -> bool:
    """Whether a candidate was passed over for one that was little faster alone: what is in the plan beside
    them may well decide otherwise."""
    mine = climb.screened.get(choice.name)
    if mine is None or mine.ratio is None or _rival(bench, climb, choice) is None:
        return False
    for other in climb.best.plan.names:
        theirs = climb.screened.get(other)
        if conflict(bench.technique(choice.name), bench.technique(other)) is not None:
            return theirs is None or theirs.ratio is None or mine.ratio >= CLOSE * theirs.ratio
    return False


def _try_again(
    bench: Bench, climb: Climb, choice: Choice, *, in_place: bool = False, share: float = 1.0
) -> None:
    """One that lost, on the plan that has grown since, where that costs a small part of the budget.
    ``in_place``: of what excludes it; ``share``: of what may be spent."""
    plan = bench.with_choice(climb.best.plan, choice)
    known = f"climb:{plan.key}" in bench.verdicts  # tried before the search was stopped
    most = share * bench.options.figures.retry_share * bench.options.budget_seconds
    if (
        (known or climb.candidate_seconds(plan, None) <= most)
        and (in_place or _rival(bench, climb, choice) is None)
        and _cannot_gain(bench, climb, choice) is None
    ):
        bench.say(f"{choice.name} once more, on top of {climb.best.plan.key}")
        climb.try_candidate(choice)


def _climb_one(bench: Bench, climb: Climb, choice: Choice) -> None:
    rival = _rival(bench, climb, choice)
    if rival is not None:
        note_decision(bench, choice, Standing.NO_GAIN, rival)
        return
    decision = climb.try_candidate(choice)
    for alternative in _alternatives(bench, choice, decision.fault):
        if climb.try_candidate(alternative).standing is Standing.APPLIED:
            return


def _rival(bench: Bench, climb: Climb, choice: Choice) -> str | None:
    """Why a candidate need not be tried in place of one that excludes it."""
    technique = bench.technique(choice.name)
    mine = climb.screened.get(choice.name)
    for other in climb.best.plan.names:
        why = conflict(technique, bench.technique(other))
        if why is None:
            continue
        theirs = climb.screened.get(other)
        ours_ratio = mine.ratio if mine is not None else None
        their_ratio = theirs.ratio if theirs is not None else None
        if ours_ratio is None or their_ratio is None or ours_ratio <= their_ratio:
            numbers = (
                f": alone {times(ours_ratio)} against {times(their_ratio)}"
                if ours_ratio is not None and their_ratio is not None
                else ""
            )
            return f"{other} has its place, and one excludes the other ({why}){numbers}"
    return None
