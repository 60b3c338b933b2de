"""One comparison of a played program with a plan whose gain is planted, as a search would make it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playing import nouns

BUDGET_SECONDS = 36000.0


def compare(
    folder: Path,
    program: Any,
    *,
    seed: int,
    aim_of: Callable[[Any], Any],
    then: Callable[[Any, Any], Any],
    search_seconds: float = BUDGET_SECONDS,
) -> tuple[Any, Any]:
    """(the verdict on the technique ``planted``, what ``then`` makes of bench and verdict).

    Times the untouched program, compares it with itself, and then with the plan, until the comparison's own
    rule ends it. ``folder``: for the ledger. ``aim_of``: the Aim, from the search's options.
    ``search_seconds``: the budget of a search that would compare the untouched program with itself as often
    as it is done here; the comparison with the plan has all the time that it wants.
    """
    from dataclasses import replace

    from flatout.ledger import Ledger
    from flatout.plan import Choice, Plan
    from flatout.runners.mock import MockRunner
    from flatout.search.baseline import measure_again, measure_baseline
    from flatout.search.bench import Bench
    from flatout.search.measure import Seat
    from flatout.search.options import SearchOptions
    from flatout.search.prove import prove

    runner = MockRunner(program, seed=seed)
    options = SearchOptions(budget_seconds=BUDGET_SECONDS, seed=seed)
    workload, host, interpreter = nouns(folder)
    with Ledger(folder / "ledger.sqlite") as ledger:
        number = ledger.start_search(
            fingerprint="played",
            workload=workload,
            host=host,
            interpreter=interpreter,
            options=options,
            version="0",
        )
        bench = Bench(
            runner=runner,
            ledger=ledger,
            search=number,
            host=host,
            interpreter=interpreter,
            options=options,
            catalogue=program.catalogue(),
            tell=lambda _: None,
            clock=runner.clock,
            unix_time=time.time,
        )
        baseline = measure_baseline(bench)
        bench.options = replace(options, budget_seconds=min(search_seconds, BUDGET_SECONDS))
        measure_again(bench, baseline)
        bench.options = options
        seat = Seat(bench=bench, plan=Plan(choices=(Choice(name="planted"),)), key="planted")
        verdict = prove(bench, "planted", baseline, seat, aim_of(options))
        made = then(bench, verdict)
        bench.kill_all()
    return verdict, made
