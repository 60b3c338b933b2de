"""Secrets on a command line are neither stored nor shown; what only looks like one stays."""

from __future__ import annotations

import shlex

import pytest

from flatout.ledger import redact, redact_command


@pytest.mark.parametrize("word", ["--api-key=abc", "WANDB_API_KEY=abc", "--hub_token=abc", "PASSWORD=abc"])
def test_secrets(word: str) -> None:
    assert redact(word) == word.replace("abc", "***")


@pytest.mark.parametrize(
    "word", ["--tokenizer=gpt2", "--max_tokens=5", "--monkey=3", "--key_dim=64", "--author=me", "--lr=3"]
)
def test_what_is_none(word: str) -> None:
    assert redact(word) == word


def test_address() -> None:
    assert redact("postgres://ada:pw@db/x") == "postgres://ada:***@db/x"


def test_command() -> None:
    words = "python t.py --api-key s3 --lr 3 --hub_token hf_x --tokenizer gpt2 --auth --epochs 3"
    hidden = "python t.py --api-key *** --lr 3 --hub_token *** --tokenizer gpt2 --auth --epochs 3"
    assert " ".join(redact_command(shlex.split(words))) == hidden
