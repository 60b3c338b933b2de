"""Everything that can go wrong, as one tree.

    FlatoutError                      1   anything below; never raised itself
    ├── UsageError                    2   the command line or a plan file asks for something impossible
    │   ├── CommandNotFound           3   the program to run does not exist or cannot be executed
    │   └── PlanError                 4   plan.toml cannot be read, or its techniques collide
    ├── StalePlan                     5   the plan was proved for another script, GPU or torch
    ├── ProgramError                 10   the user's program did something that ends the search
    │   ├── ProgramCrashed           11   it failed on its own, without any technique applied
    │   ├── NeverStepped             12   it ended or ran on without one training step
    │   ├── TooFewSteps              13   it trains, but ends before enough steps could be measured
    │   ├── NeedsInput               14   it waits for standard input
    │   ├── WroteTooMuch             15   it filled the space allowed for thrown-away writes
    │   ├── Hung                     16   no step within the time allowed
    │   ├── OutOfMemory              17   it does not fit the device or the host, even unchanged
    │   └── DetachedProgram          18   it forked and left: its work goes on out of our sight
    ├── AgentError                   20   the agent could not do its part inside the program
    │   ├── AgentDidNotEnter         21   python -S, a static interpreter, a program that is not Python
    │   ├── TorchUnsupported         22   no torch in the program's interpreter, or one that is too old
    │   └── TechniqueInactive        23   a technique of the plan could not be applied, or did not run
    ├── IsolationError               30   no way to keep the user's files safe could be set up
    ├── LedgerError                  40   the ledger cannot be opened, read or written
    ├── DiskFull                     41   no space for flatout's own files
    ├── BadCapture                   50   a profile cannot be read, or holds nothing that can be
    └── Interrupted                 130   Ctrl-C; what was proved so far has been kept

Every leaf has an exit code of its own. A message says what happened, the value seen and what to do
next; only ``main`` prints it. ``child_error`` holds the program's own last words, shown first.
"""

from __future__ import annotations

from typing import ClassVar


class FlatoutError(Exception):
    """Base of every error that flatout raises for a person to read.

    ``message`` says what happened and the value seen; ``hint`` what to do next;
    ``child_error`` is the tail of what the user's program itself printed, when that is the cause.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", child_error: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.child_error = child_error


class UsageError(FlatoutError):
    """The command line asks for something impossible."""

    exit_code = 2


class CommandNotFound(UsageError):
    """The program to run does not exist or cannot be executed."""

    exit_code = 3


class PlanError(UsageError):
    """A plan file cannot be read, or its techniques collide."""

    exit_code = 4


class StalePlan(FlatoutError):
    """A plan was proved for another script, GPU or torch than it is asked to run with."""

    exit_code = 5


class ProgramError(FlatoutError):
    """The user's program did something that ends the search."""

    exit_code = 10


class ProgramCrashed(ProgramError):
    """The program fails on its own, with no technique applied."""

    exit_code = 11


class NeverStepped(ProgramError):
    """The program ended, or ran on, without one training step."""

    exit_code = 12


class TooFewSteps(ProgramError):
    """The program trains, but ends before enough steps could be measured."""

    exit_code = 13


class NeedsInput(ProgramError):
    """The program waits for standard input."""

    exit_code = 14


class WroteTooMuch(ProgramError):
    """The program filled the space allowed for writes that are thrown away."""

    exit_code = 15


class Hung(ProgramError):
    """No step was seen within the time allowed."""

    exit_code = 16


class OutOfMemory(ProgramError):
    """The program does not fit the device or the host, even unchanged."""

    exit_code = 17


class DetachedProgram(ProgramError):
    """The program forked and its first process left."""

    exit_code = 18


class AgentError(FlatoutError):
    """The agent could not do its part inside the program."""

    exit_code = 20


class AgentDidNotEnter(AgentError):
    """The program's interpreter never loaded the agent."""

    exit_code = 21


class TorchUnsupported(AgentError):
    """The program's interpreter has no torch, or one that is too old."""

    exit_code = 22


class TechniqueInactive(AgentError):
    """A technique of the plan could not be applied, or did not run."""

    exit_code = 23


class IsolationError(FlatoutError):
    """No way to keep the user's files safe could be set up."""

    exit_code = 30


class LedgerError(FlatoutError):
    """The ledger cannot be opened, read or written."""

    exit_code = 40


class DiskFull(FlatoutError):
    """There is no space for flatout's own files."""

    exit_code = 41


class BadCapture(FlatoutError):
    """A profile is of no format that flatout reads, or too damaged for anything in it to be read."""

    exit_code = 50


class Interrupted(FlatoutError):
    """The person pressed Ctrl-C; what was proved so far has been kept."""

    exit_code = 130
