"""The ledger keeps what it was given, changes nothing, and says clearly what is wrong with a file."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.errors import DiskFull, LedgerError
from flatout.ledger import APPLICATION_ID, SCHEMA, Ledger, redact
from flatout.plan import Choice, Plan
from flatout.search.options import SearchOptions
from flatout.trial import Block, Call, Outcome, State, Trial, Verdict
from flatout.workload import Workload
from search.played import HOST, INTERPRETER


def begin(ledger: Ledger, **options: object) -> int:
    return ledger.start_search(
        fingerprint="f",
        workload=Workload(
            command=("python", "train.py", "--api-key=abc"), cwd="/w", environment={"SECRET": "hush"}
        ),
        host=HOST,
        interpreter=INTERPRETER,
        options=SearchOptions(**options),
        version="0.1.0",
    )


TRIAL = Trial(
    key="screen:bf16",
    plan=Plan(choices=(Choice(name="bf16", settings={"a": 1, "b": [True, None, "x", 0.1]}),)),
    outcome=Outcome(
        state=State.COMPLETED,
        steps=3,
        step_seconds=(0.1, 1 / 3, 1e-300),
        losses=((0, 1.0), (1, float("inf"))),
        active={"bf16": {"dtypes": ["bfloat16"], "scale": float("-inf")}},
    ),
    started=1.5,
    seconds=2.25,
)
VERDICT = Verdict(
    key="climb:bf16",
    plan_a=Plan(),
    plan_b=TRIAL.plan,
    call=Call.BETTER,
    ratio=2.0,
    low=1.9,
    high=2.1,
    confidence=0.99,
    pairs=5,
    smallest_effect=0.01,
    samples_a=(0.1, 0.2),
    samples_b=(0.05, 0.1),
)


def test_what_goes_in_comes_out(tmp_path):
    block = Block(first_step=4, step_seconds=(0.1, 0.2), steps=3, wall_seconds=0.31)
    with Ledger(tmp_path / "l.sqlite") as ledger:
        search = begin(ledger)
        ledger.add_trial(search, TRIAL, at=3.0)
        ledger.add_verdict(search, VERDICT, at=9.0)
        ledger.add_block(search, trial="screen:bf16", comparison="climb:bf16", block=block)
        ledger.add_event(search, "note", {"value": float("nan"), "text": "nan"}, at=4.0)
    with Ledger(tmp_path / "l.sqlite", writable=False) as ledger:
        assert ledger.searches() == [search]
        assert ledger.trials(search) == {TRIAL.key: TRIAL}
        assert ledger.verdicts(search) == {VERDICT.key: VERDICT}
        assert ledger.blocks(search) == [("screen:bf16", "climb:bf16", block)]
        assert ledger.blocks(search, "other") == []
        (event,) = ledger.events(search, "note")
        assert event.data["value"] != event.data["value"]
        assert event.data["text"] == "nan"
        assert ledger.spent_seconds(search) == 9.0
        row = ledger.search(search)
        assert row.host == HOST
        assert row.interpreter == INTERPRETER
        assert row.options == SearchOptions()


def test_no_value_of_the_environment_and_no_secret_is_stored(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        row = ledger.search(begin(ledger))
    assert row.workload.environment == {"SECRET": "***"}
    assert row.workload.command == ("python", "train.py", "--api-key=***")
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"hush" not in content
    assert b"abc" not in content


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("--wandb-api-key=abc", "--wandb-api-key=***"),
        ("PASSWORD=x", "PASSWORD=***"),
        ("https://me:pw@host/x", "https://me:***@host/x"),
        ("--lr=0.1", "--lr=0.1"),
        ("--tokenizer=gpt2", "--tokenizer=gpt2"),
        ("--max-tokens=100", "--max-tokens=100"),
        ("--keys=3", "--keys=3"),
    ],
)
def test_redact(text, redacted):
    assert redact(text) == redacted


def test_a_trial_is_written_once(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        search = begin(ledger)
        ledger.add_trial(search, TRIAL, at=0.0)
        with pytest.raises(LedgerError, match="UNIQUE"):
            ledger.add_trial(search, TRIAL, at=0.0)
    database = sqlite3.connect(tmp_path / "l.sqlite")
    for statement in ("UPDATE trial SET data = ''", "DELETE FROM trial", "UPDATE trial SET key = 'x'"):
        with pytest.raises(sqlite3.IntegrityError, match="written once"):
            database.execute(statement)
    database.close()


def test_resume_finds_the_same_workload_and_options_only(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        search = begin(ledger, budget_seconds=10.0)
        other = SearchOptions(only=("bf16",))
        assert ledger.resume_search(fingerprint="g", options=SearchOptions()) is None
        assert ledger.resume_search(fingerprint="f", options=other) is None
        longer = SearchOptions(budget_seconds=99.0)
        assert ledger.resume_search(fingerprint="f", options=longer) == search
        assert ledger.search(search).options.budget_seconds == 99.0
        for state, found in (("interrupted", search), ("failed", None), ("finished", None)):
            ledger.set_state(search, state)
            assert ledger.resume_search(fingerprint="f", options=SearchOptions()) == found


def test_something_else_is_not_a_ledger(tmp_path):
    path = tmp_path / "l.sqlite"
    path.write_text("hello, I am a text file that is long enough" * 30, encoding="utf-8")
    before = path.read_bytes()
    for writable in (True, False):
        with pytest.raises(LedgerError, match="not a ledger") as caught:
            Ledger(path, writable=writable)
        assert "--out" in caught.value.hint
    assert path.read_bytes() == before


def test_someone_elses_database_is_left_alone(tmp_path):
    path = tmp_path / "l.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE mine (x)")
    database.commit()
    database.close()
    for writable in (True, False):
        with pytest.raises(LedgerError, match=r"not a ledger of flatout's"):
            Ledger(path, writable=writable)
    database = sqlite3.connect(path)
    assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]
    database.close()


def test_a_newer_ledger_is_refused(tmp_path):
    Ledger(tmp_path / "l.sqlite").close()
    database = sqlite3.connect(tmp_path / "l.sqlite")
    database.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    assert database.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    database.close()
    with pytest.raises(LedgerError, match="newer flatout") as caught:
        Ledger(tmp_path / "l.sqlite")
    assert "Update" in caught.value.hint


def test_a_damaged_ledger_says_so(tmp_path):
    path = tmp_path / "l.sqlite"
    with Ledger(path) as ledger:
        search = begin(ledger)
        for number in range(200):
            ledger.add_event(search, "note", {"text": "x" * 500, "n": number}, at=0.0)
    data = bytearray(path.read_bytes())
    data[8192 : len(data) - 4096] = os.urandom(len(data) - 8192 - 4096)
    path.write_bytes(bytes(data))
    with (
        pytest.raises(LedgerError, match=r"damaged|cannot be read"),
        Ledger(path, writable=False) as ledger,
    ):
        ledger.events(search)
        ledger.trials(search)
        ledger.verdicts(search)


def test_an_event_that_lacks_something_is_the_ledgers_fault(tmp_path):
    """One flipped bit in a key is enough, and is no fault of flatout's own."""
    with Ledger(tmp_path / "l.sqlite") as ledger:
        search = begin(ledger)
        ledger.add_event(search, "order", {"names": ["bf16"], "x": float("nan")}, at=0.0)
        (event,) = ledger.events(search, "order")
        assert event.data["names"] == ["bf16"] and event.data["x"] != event.data["x"]
        assert event.data.get("nomes") is None
        with pytest.raises(LedgerError, match=r"damaged.*'order' has no 'nomes'"):
            event.data["nomes"]
        ledger._db.execute("UPDATE event SET data = '[1]'")
        with pytest.raises(LedgerError, match="cannot be read"):
            ledger.events(search)


def test_a_truncated_ledger_says_so(tmp_path):
    path = tmp_path / "l.sqlite"
    with Ledger(path) as ledger:
        search = begin(ledger)
        for number in range(200):
            ledger.add_event(search, "note", {"text": "x" * 500, "n": number}, at=0.0)
    with path.open("r+b") as file:
        file.truncate(10000)
    with pytest.raises(LedgerError), Ledger(path, writable=False) as ledger:
        ledger.events(search)


def test_a_live_search_holds_its_ledger(tmp_path):
    path = tmp_path / "l.sqlite"
    code = (
        "import sys, pathlib; from flatout.ledger import Ledger; "
        "ledger = Ledger(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LedgerError, match=f"process {holder.pid}") as caught:
            Ledger(path)
        assert "--out" in caught.value.hint
        Ledger(path, writable=False).searches() if path.stat().st_size else None
    finally:
        holder.kill()
        holder.communicate()
    # the lock goes with the process, however it ended
    Ledger(path).close()


def test_reading_works_without_the_right_to_write(tmp_path):
    path = tmp_path / "l.sqlite"
    with Ledger(path) as ledger:
        search = begin(ledger)
        ledger.add_trial(search, TRIAL, at=0.0)
    (tmp_path / "l.sqlite.lock").unlink()
    tmp_path.chmod(0o555)
    try:
        with Ledger(path, writable=False) as ledger:
            assert ledger.trials(search) == {TRIAL.key: TRIAL}
        assert not (tmp_path / "l.sqlite.lock").exists()
    finally:
        tmp_path.chmod(0o755)


def test_a_reader_sees_what_a_killed_writer_had_written(tmp_path):
    path = tmp_path / "l.sqlite"
    code = (
        "import sys, os, signal, pathlib; sys.path.insert(0, sys.argv[2]); "
        "from test_ledger import begin, TRIAL; from flatout.ledger import Ledger; "
        "ledger = Ledger(pathlib.Path(sys.argv[1])); search = begin(ledger); "
        "ledger.add_trial(search, TRIAL, at=1.0); os.kill(os.getpid(), signal.SIGKILL)"
    )
    root = Path(__file__).resolve().parent
    done = subprocess.run([sys.executable, "-c", code, str(path), str(root)], check=False)
    assert done.returncode == -9
    with Ledger(path, writable=False) as ledger:
        assert ledger.trials(1) == {TRIAL.key: TRIAL}
        assert ledger.search(1).state == "running"


def test_nothing_there(tmp_path):
    with pytest.raises(LedgerError, match="no ledger"):
        Ledger(tmp_path / "l.sqlite", writable=False)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_called_so(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        search = begin(ledger)
        pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
        ledger._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(DiskFull) as caught:
            ledger.add_event(search, "note", {"text": "x" * 100_000}, at=0.0)
        assert "goes on" in caught.value.hint
        assert ledger.events(search) == []


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(LedgerError, match="cannot be written"):
        Ledger(tmp_path / "file" / "l.sqlite")


def test_an_unknown_search(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger, pytest.raises(LedgerError, match="no search 7"):
        ledger.search(7)
