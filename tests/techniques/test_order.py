"""Orders and conflicts between techniques are data, and are checked before anything is tried."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flatout.errors import PlanError
from flatout.plan import Choice, Plan
from flatout.planfile import PlanFile, read_plan, write_plan
from flatout.renderers.manual import company, render_manual, render_manual_markdown
from flatout.runners.mock import DISCOVERY, MockDeclaration, MockTechnique
from flatout.technique import Technique
from flatout.techniques import TECHNIQUES, make_plan, technique_named
from flatout.techniques.order import check, conflict, excluded_by, in_order


def declared(name: str, **facts: object) -> Technique:
    return MockDeclaration(name, MockTechnique(**facts))  # type: ignore[arg-type, return-value]


FP8 = declared("fp8", slot="products", excludes={"graphs": "its scales are kept by the host"})
GRAPHS = declared("graphs", after=("compiled",), eclipsed_by=("compiled",))
COMPILED = declared("compiled", after=("fp8", "precise"))
PRECISE = declared("precise", slot="products")


def names(techniques: tuple[Technique, ...]) -> str:
    return " ".join(technique.name for technique in techniques)


def test_each_comes_after_what_it_names_and_else_as_given():
    assert names(in_order([GRAPHS, COMPILED, PRECISE, FP8])) == "precise fp8 compiled graphs"
    assert names(in_order([GRAPHS, FP8])) == "graphs fp8", "what is not there is not waited for"


def test_a_circle_is_refused():
    circle = [declared("a", after=("b",)), declared("b", after=("c",)), declared("c", after=("a",))]
    with pytest.raises(LookupError, match="after another of them: a, b, c"):
        in_order(circle)
    with pytest.raises(LookupError):
        check(circle)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"after": ("fp4",)}, "after names 'fp4'"),
        ({"after": ("odd",)}, "after names 'odd', which is no other"),
        ({"excludes": {"fp4": "no"}}, "excludes names 'fp4'"),
        ({"eclipsed_by": ("fp4",)}, "eclipsed_by names 'fp4'"),
        ({"excludes": {"fp8": ""}}, "without saying why"),
        ({"excludes": {"fp8": "no"}, "after": ("fp8",)}, "both excludes fp8 and comes after it"),
        ({"expected": 0.0}, "expected is 0.0"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(facts, words):
    with pytest.raises(LookupError, match=words):
        check([FP8, GRAPHS, COMPILED, PRECISE, declared("odd", **facts)])


def test_the_catalogue_holds():
    check(TECHNIQUES)


def test_conflicts_hold_both_ways_and_say_why():
    assert conflict(FP8, PRECISE) == conflict(PRECISE, FP8) == "both set the products"
    assert conflict(FP8, GRAPHS) == conflict(GRAPHS, FP8) == "its scales are kept by the host"
    assert conflict(FP8, COMPILED) is None
    assert conflict(FP8, FP8) is None
    catalogue = {technique.name: technique for technique in (FP8, GRAPHS, COMPILED, PRECISE)}
    assert excluded_by(GRAPHS, catalogue) == {"fp8": "its scales are kept by the host"}


def test_a_plan_is_sorted_and_checked_by_them():
    catalogue = [GRAPHS, COMPILED, FP8, PRECISE]
    assert make_plan(["graphs", "compiled", "precise"], catalogue).names == (
        "precise",
        "compiled",
        "graphs",
    )
    with pytest.raises(PlanError, match="fp8 and graphs exclude each other: its scales are kept"):
        make_plan(["fp8", "graphs"], catalogue)


def test_a_plan_file_is_sorted_and_checked_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import flatout.techniques

    rival = declared("rival", excludes={"compile": "it takes the same call"})
    monkeypatch.setattr(flatout.techniques, "TECHNIQUES", (*TECHNIQUES, rival))
    path = tmp_path / "plan.toml"
    file = PlanFile(
        plan=Plan(), command=("python", "t.py"), cwd="/", script=None, interpreter="/p", python="3.12.1",
        torch="2.13.0", flatout="0", discovery=DISCOVERY, script_sha256=None, packages={}, gpus=(),
        driver=None, cuda=None,
    )  # fmt: skip
    write_plan(path, replace(file, plan=Plan(choices=(Choice(name="compile"), Choice(name="bf16")))))
    assert read_plan(path).plan.names == ("bf16", "compile")
    write_plan(path, replace(file, plan=Plan(choices=(Choice(name="compile"), Choice(name="rival")))))
    with pytest.raises(PlanError, match="compile and rival exclude each other: it takes the same call"):
        read_plan(path)


def test_the_manual_says_how_it_goes_with_others():
    page = render_manual(technique_named("compile"))
    assert "applied after" in page and "bf16, sdpa, tf32" in page
    assert "can shorten" in page and "the whole step but the wait for data" in page
    assert "- **applied after**: bf16" in render_manual_markdown(technique_named("sdpa"))
    catalogue = {technique.name: technique for technique in (FP8, GRAPHS, COMPILED)}
    assert company(GRAPHS, tuple(catalogue.values())) == [
        ("applied after", "compiled"),
        ("not with", "fp8 (its scales are kept by the host)"),
        ("seldom pays beside", "compiled"),
    ]
