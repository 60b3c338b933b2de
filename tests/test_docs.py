"""The documents agree with the code: technique pages, README's tables and links, help."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flatout import errors
from flatout.commands import SUMMARIES
from flatout.renderers.manual import EFFECTS, render_manual, render_manual_markdown, render_techniques
from flatout.technique import Effect, Technique
from flatout.techniques import HEADINGS, TECHNIQUES

ROOT = Path(__file__).parents[1]
PAGES = [
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    if path.name not in ("LOG.md", "CHANGELOG.md")
]


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda technique: technique.name)
def test_technique_pages_are_in_step(technique: Technique) -> None:
    page = ROOT / "docs" / "techniques" / f"{technique.name}.md"
    assert page.is_file(), "run scripts/docs"
    assert page.read_text() == render_manual_markdown(technique), "run scripts/docs"


def test_no_page_without_a_technique() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "techniques").glob("*.md")}
    assert pages == {technique.name for technique in TECHNIQUES}


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda technique: technique.name)
def test_manual_pages_have_their_sections_and_balanced_fences(technique: Technique) -> None:
    page = render_manual_markdown(technique)
    places = [page.index(f"\n## {heading}\n") for heading in HEADINGS]
    assert places == sorted(places)
    assert page.count("```") % 2 == 0
    outside = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    assert "``" not in outside
    assert not re.search(r"::$", outside, flags=re.MULTILINE)
    shown = render_manual(technique)
    assert all(f"\n{heading}\n" in shown for heading in HEADINGS)
    assert not re.search(r"::$", shown, flags=re.MULTILINE)
    assert set(EFFECTS) == set(Effect)
    assert max(map(len, shown.splitlines())) <= 120


def test_the_table_names_each_once() -> None:
    lines = render_techniques(TECHNIQUES).splitlines()
    for technique in TECHNIQUES:
        assert sum(line.split()[:1] == [technique.name] for line in lines) == 1
        assert sum(line.split()[:1] == [str(technique.effect)] for line in lines) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_readme_knows_every_command_technique_and_exit_code() -> None:
    text = (ROOT / "README.md").read_text()
    for name in SUMMARIES:
        assert f"flatout {name}" in text
    for technique in TECHNIQUES:
        assert f"| `{technique.name}` |" in text
    codes = " ".join(re.findall(r"^\| ([\d, to]+) \|", text, flags=re.MULTILINE))
    named = set()
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", codes):
        named |= set(range(int(first), int(last or first) + 1))
    leaves = {
        kind.exit_code
        for base in errors.FlatoutError.__subclasses__()
        for kind in (base, *base.__subclasses__())
    }
    # 10 and 20 are families, never raised themselves.
    assert leaves - {10, 20} <= named


def test_readme_has_a_sample_of_a_real_run() -> None:
    text = (ROOT / "README.md").read_text()
    assert "What each technique brought" in text
    assert "flatout run --plan" in text
