"""The catalogue is found by looking, ordered by application, and refuses what collides."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
from pathlib import Path

import pytest

import flatout.agent.acts
from flatout.errors import PlanError
from flatout.plan import Choice
from flatout.technique import Effect, Part
from flatout.techniques import HEADINGS, TECHNIQUES, make_plan, training
from flatout.techniques.training.tf32 import Tf32

ORDER = ("tf32", "bf16", "sdpa", "compile", "fused_optimizer")


def test_every_file_is_found_and_they_are_in_order_of_application():
    files = {path.stem for path in Path(training.__path__[0]).glob("*.py")} - {"__init__"}
    assert {technique.name for technique in TECHNIQUES} == files
    assert tuple(technique.name for technique in TECHNIQUES) == ORDER


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda t: t.name)
def test_each_has_an_act_of_its_name(technique):
    folder = flatout.agent.acts.__path__
    assert importlib.util.find_spec(f"flatout.agent.acts.{technique.name}") is not None
    text = Path(folder[0], f"{technique.name}.py").read_text(encoding="utf-8")
    assert f'name = "{technique.name}"' in text and "class Act(" in text


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda t: t.name)
def test_each_is_frozen_and_complete(technique):
    assert dataclasses.is_dataclass(technique) and type(technique).__dataclass_params__.frozen
    assert isinstance(technique.effect, Effect)
    assert technique.title and technique.claimed and technique.slot
    assert technique.expected > 1.0
    assert isinstance(technique.shortens, Part)


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda t: t.name)
def test_each_manual_page_has_all_headings_in_order(technique):
    lines = inspect.cleandoc(type(technique).__doc__).splitlines()
    places = [lines.index(heading) for heading in HEADINGS]
    assert places == sorted(places)
    for start, end in zip(places, [*places[1:], len(lines)], strict=True):
        assert any(line.strip() for line in lines[start + 1 : end]), lines[start]


def test_a_plan_is_in_order_of_application_however_it_was_given():
    first = make_plan(["fused_optimizer", "compile", "bf16", "tf32", "sdpa"])
    assert first.names == ORDER
    assert first == make_plan(reversed(ORDER))
    assert make_plan([Choice(name="compile", settings={"dynamic": True})]).key == "compile(dynamic=True)"
    assert not make_plan([])


def test_an_unknown_name_is_refused_with_those_that_there_are():
    with pytest.raises(PlanError, match="no technique 'fp64'") as error:
        make_plan(["fp64"])
    assert "tf32" in error.value.hint and "compile" in error.value.hint


def test_a_name_given_twice_is_refused():
    with pytest.raises(PlanError, match="bf16 is listed twice"):
        make_plan(["bf16", "compile", "bf16"])


def test_two_of_one_slot_are_refused_by_both_names():
    class Rival(Tf32):
        name = "rival"

    with pytest.raises(PlanError, match=r"tf32 and rival exclude each other") as error:
        make_plan(["tf32", "rival"], [*TECHNIQUES, Rival()])
    assert "--without rival" in error.value.hint


def test_slots_of_the_five_do_not_collide():
    assert len({technique.slot for technique in TECHNIQUES}) == len(TECHNIQUES)
