"""Report and plan file from the ledger alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flatout.codec import from_plain
from flatout.guard.gradients import NO_AGREEMENT_DB, agreement_text, own_agreement_db
from flatout.ledger import Ledger
from flatout.pace import pace_of
from flatout.planfile import PlanFile, Proof
from flatout.quality import Interval, Quality, judge_quality
from flatout.report.nouns import CompileCost, Noise, Report, Spent, TechniqueRow, TrialRow
from flatout.report.record import Proved, Record
from flatout.report.sentences import conclude
from flatout.search.bench import HELD_USE_PERCENT
from flatout.search.floor import Remains, divide_step
from flatout.search.judge import RECOMPILES_ALLOWED
from flatout.search.limits import Limit, find_limits
from flatout.search.options import SearchOptions
from flatout.search.record import latest
from flatout.search.standing import Standing
from flatout.stats import mad, median, relative_spread
from flatout.trial import Call, GuardReport, Outcome, Profile, Trial
from flatout.words import command_line

STATES = {"running": "unfinished"}
"""A search whose process has been killed is still called running in the ledger."""
THROWN_AWAY_SHOWN = 200


def build_report(ledger: Ledger, search: int) -> Report:
    """Everything that is known about a search. LedgerError where the ledger cannot be read."""
    record = Record(ledger, search)
    state = STATES.get(record.row.state, record.row.state)
    proved = record.proved()
    noise = _noise(record)
    techniques = _techniques(record, proved)
    compile_cost = _compile_cost(record, proved)
    failure = record.last("failure") if state == "failed" else None
    thrown = _thrown_away(record)
    baseline_step = proved.baseline_step_seconds
    if baseline_step is None and record.baseline is not None:
        baseline_step = pace_of(record.baseline)
    outcomes = record.outcomes()
    return Report(
        search_id=search,
        flatout_version=record.row.version,
        state=state,
        conclusion=conclude(
            record=record,
            state=state,
            proved=proved,
            techniques=techniques,
            noise=noise,
            compile_cost=compile_cost,
        ),
        command=record.row.workload.command,
        cwd=record.row.workload.cwd,
        started=record.row.started,
        elapsed_seconds=record.elapsed_seconds,
        budget_seconds=record.row.options.budget_seconds,
        plan=proved.plan,
        baseline_step_seconds=baseline_step,
        plan_step_seconds=proved.plan_step_seconds,
        ratio=proved.ratio,
        low=proved.low,
        high=proved.high,
        confidence=record.row.options.confidence,
        smallest_effect=proved.smallest_effect
        if proved.plan
        else (noise.smallest_effect if noise is not None else None),
        guard_note=proved.guard_note,
        techniques=techniques,
        verdicts=tuple(record.verdicts.values()),
        trials=tuple(_trial_row(trial) for trial in record.trials.values()),
        limits=_limits(record),
        left=_left(record, proved, techniques),
        spent=_spent(ledger, record),
        guard=_guard(record, proved),
        surroundings=tuple(event.data for event in record.events if event.kind == "surroundings"),
        quality=_quality(record, proved),
        noise=noise,
        already=dict(record.baseline.discovery.already)
        if record.baseline is not None and record.baseline.discovery is not None
        else {},
        discovery=record.baseline.discovery if record.baseline is not None else None,
        host=record.row.host,
        interpreter=record.row.interpreter,
        compile=compile_cost,
        isolation=next((one.isolation for one in outcomes if one.isolation), ""),
        thrown_away=thrown[:THROWN_AWAY_SHOWN],
        # each trial lists its largest files only: there are at least so many as any one of them counted
        thrown_away_count=max([len(thrown), *(one.thrown_away_count for one in outcomes)]),
        thrown_away_bytes=max([sum(map(_bytes, thrown)), *(one.thrown_away_bytes for one in outcomes)]),
        next_command=_next_command(record, state, proved),
        error=str(failure.data["error"]) if failure is not None else "",
        child_error=str(failure.data["child_error"]) if failure is not None else "",
        notes=_notes(record),
    )


def plan_file(ledger: Ledger, search: int) -> PlanFile | None:
    """plan.toml's content for the best plan proved so far, the empty one included; None where the program
    is not yet understood."""
    record = Record(ledger, search)
    proved = record.proved()
    if record.baseline is None or record.baseline.discovery is None:
        return None
    row = record.row
    discovery = record.baseline.discovery
    script = record.last("script")
    proof = None
    if proved.ratio is not None and proved.low is not None and proved.high is not None:
        assert proved.baseline_step_seconds is not None
        assert proved.plan_step_seconds is not None
        proof = Proof(
            ratio=proved.ratio,
            low=proved.low,
            high=proved.high,
            confidence=row.options.confidence,
            smallest_effect=proved.smallest_effect,
            baseline_step_seconds=proved.baseline_step_seconds,
            plan_step_seconds=proved.plan_step_seconds,
            pairs=proved.pairs,
            method=proved.method,
            guard_note=proved.guard_note,
            date=datetime.fromtimestamp(proved.date, UTC).isoformat(timespec="seconds"),
        )
    shares = {row.name: row.share for row in _techniques(record, proved) if row.share is not None}
    return PlanFile(
        plan=proved.plan,
        command=row.workload.command,
        cwd=row.workload.cwd,
        script=str(script.data["path"]) if script is not None else None,
        script_sha256=script.data["sha256"] if script is not None else None,
        interpreter=row.interpreter.executable,
        python=row.interpreter.version,
        torch=row.interpreter.torch_version or discovery.torch_version,
        flatout=row.version,
        packages=dict(row.interpreter.packages),
        gpus=tuple(gpu.name for gpu in row.host.gpus),
        driver=row.host.driver,
        cuda=row.host.cuda,
        discovery=discovery,
        shares=shares,
        by_hand=dict(proved.lines or {}),
        proof=proof,
        cache_dir=str(Path(record.folder) / "cache"),
    )


def _techniques(record: Record, proved: Proved) -> tuple[TechniqueRow, ...]:
    catalogue = record.last("catalogue")
    if catalogue is None:
        return ()
    decided = record.per_name("decided")
    screened = record.per_name("screened")
    return tuple(
        _technique_row(
            record=record,
            proved=proved,
            name=name,
            facts=facts,
            decision=decided.get(name),
            screened=screened.get(name),
        )
        for name, facts in catalogue.data.items()
    )


def _technique_row(
    *,
    record: Record,
    proved: Proved,
    name: str,
    facts: dict[str, Any],
    decision: dict[str, Any] | None,
    screened: dict[str, Any] | None,
) -> TechniqueRow:
    if decision is None:
        standing, reason = Standing.NOT_TRIED, "the search ended before it was its turn"
    else:
        standing, reason = Standing(decision["standing"]), str(decision["reason"])
    verdict = record.verdicts.get(str(decision["verdict"])) if decision else None
    own = record.baseline.recompiles if record.baseline is not None else 0
    if name == "compile" and standing is Standing.ALREADY and own:
        assert record.baseline is not None
        reason += f"; it recompiled {own} times in {record.baseline.steps} steps"
    evidence: dict[str, object] = {}
    for trial in record.trials_with(name):
        evidence = trial.outcome.active.get(name) or evidence
    lines = (proved.lines or {}).get(name) or str(facts["by_hand"])
    return TechniqueRow(
        name=name,
        title=str(facts["title"]),
        effect=str(facts["effect"]),
        claimed=str(facts["claimed"]),
        standing=standing,
        reason=reason,
        settings=dict(decision["settings"]) if decision else dict(facts["settings"]),
        screened=screened["ratio"] if screened else None,
        ratio=verdict.ratio if verdict else None,
        low=verdict.low if verdict else None,
        high=verdict.high if verdict else None,
        confidence=verdict.confidence if verdict else None,
        smallest_effect=verdict.smallest_effect if verdict else None,
        share=_share(record, proved, name),
        guard_note=verdict.guard_note if verdict else "",
        by_hand=lines if standing not in (Standing.UNFIT, Standing.ALREADY) else "",
        evidence=evidence,
    )


def _share(record: Record, proved: Proved, name: str) -> float | None:
    if name not in proved.plan.names:
        return None
    if len(proved.plan.choices) == 1:
        return proved.ratio
    without = tuple(choice for choice in proved.plan.choices if choice.name != name)
    for verdict in reversed(record.verdicts.values()):
        if verdict.plan_b == proved.plan and verdict.plan_a.choices == without:
            return verdict.ratio
    return None


def _trial_row(trial: Trial) -> TrialRow:
    outcome = trial.outcome
    times = outcome.step_seconds
    return TrialRow(
        key=trial.key,
        plan=trial.plan.key,
        state=outcome.state,
        reason=outcome.reason,
        error=outcome.error,
        child_error=outcome.child_error,
        exit_code=outcome.exit_code,
        steps=outcome.steps,
        counted_steps=len(times),
        median_step_seconds=median(times) if times else None,
        mad_step_seconds=mad(times) if times else None,
        startup_seconds=outcome.startup_seconds,
        warmup_seconds=outcome.warmup_seconds,
        peak_bytes=outcome.peak_bytes,
        recompiles=outcome.recompiles,
        graph_breaks=outcome.graph_breaks,
        gradients=outcome.gradients,
        started=trial.started,
        seconds=trial.seconds,
        notes=outcome.notes,
    )


def _limits(record: Record) -> tuple[Limit, ...]:
    baseline = record.baseline
    if baseline is None or baseline.discovery is None:
        return ()
    catalogue = record.last("catalogue")
    decided = record.per_name("decided")
    useless = {
        name for name, data in decided.items() if data["standing"] in (Standing.UNFIT, Standing.ALREADY)
    }
    return find_limits(
        baseline.profile,
        step_seconds=pace_of(baseline),
        loader_wait_seconds=baseline.loader_wait_seconds_per_step,
        discovery=baseline.discovery,
        techniques=[name for name in catalogue.data if name not in useless]
        if catalogue is not None
        else (),
    )


def _left(record: Record, proved: Proved, techniques: tuple[TechniqueRow, ...]) -> Remains | None:
    """Of the plan's step where it was profiled; of the untouched one where there is no plan."""
    baseline = record.baseline
    if baseline is None or baseline.discovery is None:
        return None
    untried = [
        row.name for row in techniques if row.standing is Standing.NOT_TRIED and "--only" not in row.reason
    ]
    profile, wait = baseline.profile, baseline.loader_wait_seconds_per_step
    step = pace_of(baseline)
    if proved.plan:
        told = [event.data for event in record.events if event.kind == "profiled"]
        mine = next((data for data in reversed(told) if data["plan"] == proved.plan.key), None)
        profile = from_plain(Profile, mine["profile"]) if mine is not None else None
        wait = float(mine["loader_wait_seconds"]) if mine is not None else 0.0
        step = proved.plan_step_seconds or (float(mine["step_seconds"]) if mine is not None else 0.0)
        if profile is None and record.row.state != "finished":
            return None
    remains = divide_step(
        profile,
        plan=proved.plan.key,
        step_seconds=step,
        loader_wait_seconds=wait,
        discovery=baseline.discovery,
        host=record.row.host,
        techniques=untried,
    )
    missed = record.last("unprofiled")
    if remains is not None and profile is None and missed is not None:
        return replace(remains, reason=f"the plan's step was not profiled: {missed.data['reason']}")
    return remains


def _spent(ledger: Ledger, record: Record) -> Spent:
    """By what the ledger holds; never more than the time that went by."""
    guarded = [event for event in record.events if event.kind == "guarded"]
    # the first one's time has the untouched program's own guard trials in it
    told = guarded or [event for event in record.events if event.kind == "guard reference"]
    guard = sum(float(event.data["seconds"]) for event in told)
    quality = starts = 0.0
    for key, trial in record.trials.items():
        if key.startswith("quality:"):
            quality += trial.seconds
        elif not key.startswith("guard:"):
            starts += min(trial.outcome.startup_seconds, trial.seconds)
    measuring = sum(block.wall_seconds for _, _, block in ledger.blocks(record.row.id))
    total = starts + measuring + guard + quality
    fit = min(1.0, record.elapsed_seconds / total) if total else 1.0
    return Spent(
        starts=fit * starts,
        measuring=fit * measuring,
        guard=fit * guard,
        quality=fit * quality,
        rest=max(0.0, record.elapsed_seconds - fit * total),
    )


def _guard(record: Record, proved: Proved) -> GuardReport | None:
    told = [event.data for event in record.events if event.kind == "guarded"]
    mine = next((data for data in reversed(told) if data["plan"] == proved.plan.key), None)
    return from_plain(GuardReport, mine["report"]) if mine is not None and proved.plan else None


def _quality(record: Record, proved: Proved) -> Quality | None:
    """Judged from the curves that the ledger holds."""
    planned = record.last("quality_planned")
    runs = [event.data for event in record.events if event.kind == "quality_run"]
    if planned is None or planned.data["plan"] != proved.plan.key or not runs:
        return None
    curves: dict[str, dict[int, dict[int, float]]] = {}
    for data in runs:
        curve = {int(step): float(loss) for step, loss in data["curve"]}
        curves.setdefault(str(data["plan"]), {})[int(data["seed"])] = curve
    if proved.ratio is None:
        return None
    return judge_quality(
        curves.get("baseline", {}),
        curves.get(proved.plan.key, {}),
        key=proved.plan.key,
        steps=int(planned.data["steps"]),
        step_ratio=Interval(value=proved.ratio, low=proved.low, high=proved.high),
    )


def _noise(record: Record) -> Noise | None:
    verdict = record.verdicts.get("again")
    trial = latest(record.trials, "again")
    if verdict is None or trial is None:
        return None
    seen = trial.outcome.gradients
    theirs = _by_step(record.baseline.losses) if record.baseline is not None else {}
    ours = _by_step(trial.outcome.losses)
    # the last step of the shorter one may be half told
    common = [(theirs[step], ours[step]) for step in sorted(theirs.keys() & ours.keys())][:-1]
    spread = relative_spread(verdict.samples_a) if verdict.samples_a else None
    own = own_agreement_db(seen)
    note = (
        ""
        if own is None
        else f"two unchanged runs' gradients {agreement_text(own)}: not reproducible to the bit"
        if own > NO_AGREEMENT_DB
        else f"two unchanged runs' gradients {agreement_text(own)}"
    )
    return Noise(
        ratio=verdict.ratio,
        low=verdict.low,
        high=verdict.high,
        block_spread=spread,
        gradients_db=own,
        gradients_equal=seen.equal if seen is not None and seen.compared else None,
        losses_equal=all(a == b for a, b in common) if common else None,
        smallest_effect=_hidden(record) or verdict.smallest_effect,
        note=note,
    )


def _hidden(record: Record) -> float | None:
    """The largest gain that may hide in a comparison which found none; None where none may that matters."""
    matters = 1.0 + record.row.options.gain_that_matters
    hidden = [
        verdict.smallest_effect
        for verdict in record.verdicts.values()
        if verdict.key.startswith("climb:")
        and verdict.call in (Call.SAME, Call.UNKNOWN)
        and verdict.smallest_effect is not None
        and (verdict.high or 0.0) > matters
    ]
    return max(hidden, default=None)


def _by_step(losses: Iterable[tuple[int, float]]) -> dict[int, list[str]]:
    """Step -> its losses (one per backward) as text, in which NaN equals itself."""
    found: dict[int, list[str]] = {}
    for step, loss in losses:
        found.setdefault(step, []).append(repr(loss))
    return found


def _compile_cost(record: Record, proved: Proved) -> CompileCost | None:
    """Of the search's compiled trials; else of the program's own compile where it recompiles."""
    baseline = record.baseline
    compiled = [t for t in record.trials_with("compile") if t.outcome.steps]
    own = baseline.recompiles if baseline is not None else 0
    own_note = ""
    if baseline is not None and own:
        own_note = f"Its own compile recompiled {own} times in {baseline.steps} steps."
        if own >= RECOMPILES_ALLOWED:
            own_note += (
                " From the limit on it runs uncompiled: mark the size that changes as dynamic "
                "(dynamic=True) or pad to a few sizes."
            )
    if not compiled:
        if baseline is None or not (own or baseline.graph_breaks):
            return None
        return CompileCost(
            recompiles=own,
            graph_breaks=baseline.graph_breaks,
            seconds=None,
            break_even_steps=None,
            note=own_note,
        )
    worst = max(compiled, key=lambda trial: trial.outcome.recompiles)
    decision = record.per_name("decided").get("compile")
    refused = ""
    note = own_note
    if decision is not None and decision["standing"] == Standing.REFUSED:
        refused = str(decision["reason"])
        if worst.outcome.recompiles:
            note = f"compile refused: {refused}."
    elif decision is not None and decision["settings"].get("dynamic") and worst.outcome.recompiles:
        note = (
            f"compile with fixed shapes was refused ({worst.outcome.recompiles} recompiles in "
            f"{worst.outcome.steps} steps), so it compiles for dynamic ones."
        )
    seconds = break_even = None
    if baseline is not None:
        # the first one was cold; later ones found its caches
        seconds = max(0.0, max(t.outcome.startup_seconds for t in compiled) - baseline.startup_seconds)
        if "compile" in proved.plan.names and proved.baseline_step_seconds and proved.plan_step_seconds:
            saved = proved.baseline_step_seconds - proved.plan_step_seconds
            break_even = math.ceil(seconds / saved) if saved > 0 else None
    return CompileCost(
        cached_seconds=_cached_seconds(compiled, baseline),
        recompiles=worst.outcome.recompiles,
        graph_breaks=max(trial.outcome.graph_breaks for trial in compiled),
        seconds=seconds,
        break_even_steps=break_even,
        refused=refused,
        note=note,
    )


def _cached_seconds(compiled: list[Trial], baseline: Outcome | None) -> float | None:
    found = [
        trial.outcome.startup_seconds
        for trial in compiled
        if (evidence := trial.outcome.active.get("compile", {})).get("cache_hits")
        and not evidence.get("cache_misses")
    ]
    return max(0.0, median(found) - baseline.startup_seconds) if found and baseline is not None else None


def _thrown_away(record: Record) -> tuple[tuple[str, int], ...]:
    sizes: dict[str, int] = {}
    for outcome in record.outcomes():
        for path, size in outcome.thrown_away:
            sizes[path] = max(size, sizes.get(path, 0))
    return tuple(sorted(sizes.items(), key=lambda item: (-item[1], item[0])))


def _bytes(file: tuple[str, int]) -> int:
    return file[1]


def _next_command(record: Record, state: str, proved: Proved) -> str:
    command = command_line(record.row.workload.command)
    folder = Path(record.folder)
    default = Path(record.row.workload.cwd) / ".flatout"
    if state in ("unfinished", "interrupted"):
        out = "" if folder == default.resolve() else f" --out {command_line([str(folder)])}"
        return f"flatout train{_options(record)}{out} -- {command}"
    if proved.plan:
        plan = folder / "plan.toml"
        shown = ".flatout/plan.toml" if folder == default.resolve() else str(plan)
        return f"flatout run --plan {command_line([shown])} -- {command}"
    if state == "failed":
        return "flatout doctor -- " + command
    return command


def _options(record: Record) -> str:
    """The options that this search was started with: it goes on with the same only."""
    options, plain = record.row.options, SearchOptions()
    said = ""
    if options.pace is not plain.pace:
        said += f" --{options.pace}"
    if options.budget_seconds != options.figures.budget_seconds:
        said += f" --budget {options.budget_seconds:g}s"
    allowed = tuple(f"recipe:{name}" for name in options.allow)
    for flag, names in (("--only", options.only), ("--without", options.without), ("--allow", allowed)):
        if names:
            said += f" {flag} {','.join(names)}"
    if options.isolation != plain.isolation:
        said += f" --isolation {options.isolation}"
    if options.quality:
        said += f" --quality {options.quality}"
    if options.seed is not None:
        said += f" --seed {options.seed}"
    return said


def _notes(record: Record) -> tuple[str, ...]:
    notes = [note for trial in record.trials.values() if not trial.plan for note in trial.outcome.notes]
    notes += [str(event.data["reason"]) for event in record.events if event.kind in ("apart", "aligned")]
    unrepeated = record.last("unrepeated")
    if unrepeated is not None and "again" not in record.verdicts:
        notes.append(
            f"there was no time for a second unchanged run (about {unrepeated.data['needed']:.0f} s): "
            "how far two equal runs are apart is not known"
        )
    held = record.last("held")
    if held is not None and (held.data["use_percent"] or 0) >= HELD_USE_PERCENT:
        notes.append(
            f"others use the GPU: it was {held.data['use_percent']} % busy while this search's own held"
        )
    unqualified = record.last("unqualified")
    if unqualified is not None:
        notes.append(f"--quality: {unqualified.data['reason']}")
    short = record.last("short")
    if short is not None:
        notes.append(
            f"the program ends by itself after {short.data['steps']} steps: measured over several runs"
        )
    unproved = record.last("unproved")
    if unproved is not None and record.last("final") is None:
        why = unproved.data.get("reason") or "no time was left"
        notes.append(f"the plan as a whole was not proved once more against the untouched program: {why}")
    return tuple(dict.fromkeys(notes))
