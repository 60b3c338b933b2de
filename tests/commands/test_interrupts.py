"""The first Ctrl-C is an exception, the second leaves at once; what is ignored stays ignored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from flatout.commands.interrupts import stop_politely

SLOW_TO_CLEAN_UP = """
import sys, time
from flatout.commands.interrupts import stop_politely
with stop_politely():
    try:
        print("ready", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("cleaning", flush=True)
        time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_is_an_exception(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stop_politely():
        os.kill(os.getpid(), number)
        time.sleep(5)
    assert signal.getsignal(number) is before


def test_the_second_leaves_at_once() -> None:
    process = subprocess.Popen([sys.executable, "-c", SLOW_TO_CLEAN_UP], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "cleaning\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_politely():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
