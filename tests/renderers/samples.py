"""Reports made by hand: one with a gain, one with nothing to change, one of a program that crashed."""

from __future__ import annotations

from dataclasses import replace

from flatout.host import Gpu, Host, Interpreter
from flatout.plan import Choice, Plan
from flatout.report import (
    Above,
    CompileCost,
    Limit,
    Noise,
    Part,
    Remains,
    Report,
    Spent,
    Standing,
    TechniqueRow,
    TrialRow,
)
from flatout.trial import Call, GuardPoint, GuardReport, State, Verdict
from flatout.workload import Discovery

PLAN = Plan(choices=(Choice(name="sdpa"), Choice(name="compile", settings={"mode": "default"})))

HOST = Host(
    system="Linux 6.1",
    cpu="AMD EPYC 9654",
    cpu_count=16,
    memory_bytes=128 << 30,
    gpus=(Gpu(name="NVIDIA H200", uuid="GPU-1", memory_bytes=141 << 30, compute_capability=(9, 0)),),
    driver="580.95",
    cuda="13.0",
    isolation="overlay",
)


def row(name: str, standing: Standing, reason: str = "", **more: object) -> TechniqueRow:
    values: dict[str, object] = {
        "name": name,
        "title": name.upper(),
        "effect": "rounding",
        "claimed": "2-3x over FP32",
        "standing": standing,
        "reason": reason,
    }
    return TechniqueRow(**(values | more))  # type: ignore[arg-type]


def trial(key: str, state: State = State.COMPLETED, reason: str = "") -> TrialRow:
    return TrialRow(
        key=key,
        plan=key.rpartition(":")[2],
        state=state,
        reason=reason,
        error="",
        child_error="",
        exit_code=0,
        steps=40,
        counted_steps=37,
        median_step_seconds=0.0349,
        mad_step_seconds=0.0002,
        startup_seconds=1.5,
        warmup_seconds=2.5,
        peak_bytes=3 << 30,
        recompiles=0,
        graph_breaks=0,
        gradients=None,
        started=1.7e9,
        seconds=9.0,
    )


GAIN = Report(
    search_id=1,
    flatout_version="0.1.0",
    state="finished",
    conclusion="2.31x faster with sdpa and compile, proved and still right",
    command=("python", "train.py", "--lr", "3e-4"),
    cwd="/home/ada/gpt",
    started=1.7e9,
    elapsed_seconds=312.0,
    budget_seconds=600.0,
    plan=PLAN,
    baseline_step_seconds=0.0349,
    plan_step_seconds=0.0151,
    ratio=2.31,
    low=2.28,
    high=2.35,
    confidence=0.99,
    smallest_effect=0.012,
    guard_note="gradients agree within 61 dB, the bar is 40",
    techniques=(
        row("tf32", Standing.UNFIT, "it needs a GPU of compute capability 8.0; there is none here"),
        row("bf16", Standing.REFUSED, "gradients differ too much: 9 dB, the bar is 15"),
        row(
            "sdpa",
            Standing.APPLIED,
            ratio=1.43,
            low=1.41,
            high=1.45,
            share=1.38,
            by_hand="y = F.sdpa(q, k, v)",
        ),
        row("compile", Standing.APPLIED, ratio=1.61, low=1.6, high=1.63, by_hand="model.compile()"),
        row("fused_optimizer", Standing.NO_GAIN, "1.002x alone", screened=1.002, smallest_effect=0.012),
        row("batch", Standing.NOT_TRIED, "the budget was spent"),
    ),
    verdicts=(
        Verdict(
            key="prove:sdpa+compile",
            plan_a=Plan(),
            plan_b=PLAN,
            call=Call.BETTER,
            ratio=2.31,
            low=2.28,
            high=2.35,
            confidence=0.99,
            pairs=24,
            process_pairs=(10, 14),
            left_out=((0.03, 0.05, "others kept 3 processors busy"),),
            smallest_effect=0.012,
            samples_a=(0.0349, float("nan")),
            samples_b=(0.0151, 0.0152),
        ),
    ),
    trials=(trial("baseline"), trial("screen:bf16", State.FAILED, "gradients | differ")),
    limits=(
        Limit(
            cause="attention",
            seconds_per_step=0.0121,
            share=0.35,
            evidence="softmax between two batched products",
            techniques=("sdpa",),
        ),
        Limit(cause="launches", seconds_per_step=0.004, share=0.11, evidence="2,310 kernels a step"),
    ),
    left=Remains(
        plan=PLAN.key,
        step_seconds=0.0151,
        parts=(
            Part(cause="floor", seconds=0.008, share=0.53, evidence="8 ms arithmetic in bfloat16"),
            Part(
                cause="compute",
                seconds=0.004,
                share=0.265,
                evidence="most: aten::mm (48 calls)",
                techniques=("batch",),
            ),
            Part(cause="launches", seconds=0.002, share=0.13, evidence="310 kernels, one by one"),
            Part(cause="unknown", seconds=0.0011, share=0.075),
        ),
        above=(
            Above(
                operator="aten::mm",
                kernel="nvjet | hsh",
                calls=48,
                seconds=0.011,
                floor_seconds=0.007,
                bound="arithmetic in bfloat16",
            ),
        ),
        peaks={"bfloat16": 989.5e12, "bytes": 4.8e12},
        peaks_from="the data sheet of NVIDIA H200",
    ),
    spent=Spent(starts=100.0, measuring=150.0, guard=40.0, quality=0.0, rest=22.0),
    guard=GuardReport(
        passed=True,
        truth="float64",
        points=(
            GuardPoint(
                point="start",
                step=1,
                against="truth",
                compared=50,
                overall_db=61.0,
                baseline_db=70.0,
                needed_db=40.0,
                passed=True,
            ),
        ),
        invariants="parameters, learning rate and order of samples agree",
        unchecked=("dropout: the program has none",),
        seconds=40.0,
    ),
    surroundings=({"comparison": "prove:sdpa+compile", "words": "clocks 1,980 MHz, up to 62 C"},),
    noise=Noise(
        ratio=1.001,
        low=0.995,
        high=1.007,
        block_spread=0.004,
        gradients_db=None,
        gradients_equal=True,
        losses_equal=True,
        smallest_effect=0.012,
    ),
    already={"autocast": "bfloat16 around the loss"},
    discovery=Discovery(step_unit="optimizer", anchor=0, backwards_per_step=1.0, device="cuda"),
    host=HOST,
    interpreter=Interpreter(
        executable="/usr/bin/python3", version="3.11.2", site_packages=(), torch_version="2.13.0"
    ),
    compile=CompileCost(recompiles=1, graph_breaks=0, seconds=21.0, break_even_steps=1061),
    isolation="overlay",
    thrown_away=(("/home/ada/gpt/out/checkpoint.pt", 500 << 20), ("/home/ada/gpt/log.txt", 12)),
    thrown_away_count=9,
    thrown_away_bytes=600 << 20,
    next_command="flatout run --plan .flatout/plan.toml -- python train.py --lr 3e-4",
)

NOTHING = replace(
    GAIN,
    conclusion="nothing to change: no technique makes a step faster here",
    plan=Plan(),
    plan_step_seconds=None,
    ratio=None,
    low=None,
    high=None,
    techniques=(row("bf16", Standing.NO_GAIN, "0.2x alone", screened=0.2),),
    compile=None,
    thrown_away=(),
    thrown_away_count=0,
    thrown_away_bytes=0,
    next_command="",
)

CRASHED = replace(
    NOTHING,
    state="failed",
    error="ProgramCrashed",
    conclusion="the program fails on its own, with exit code 1",
    child_error="Traceback (most recent call last):\n  File train.py\n\x1b[31mKeyError: 'x'\x1b[0m\n",
    baseline_step_seconds=None,
    techniques=(),
    limits=(),
    left=None,
    guard=None,
    spent=None,
    surroundings=(),
    noise=None,
    discovery=None,
    verdicts=(),
    trials=(trial("baseline", State.FAILED, "exit code 1"),),
)
