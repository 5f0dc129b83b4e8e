"""Exit statuses. Those from 64 to 78 are of BSD's sysexits(3), those from 126 on of POSIX shells."""

from __future__ import annotations

from fencing import (
    CoordinatorUnavailable,
    GuardNotEnforceable,
    GuardUnavailable,
    LeaseLost,
    MarkImplausible,
    NotAcquired,
    OutcomeUnknown,
    StaleFence,
    TooOld,
    UnclaimedFence,
)
from fencing.cli.files import NoFile
from fencing.cli.services import NoUrl

NOT_THERE = 1
"""Nothing to show, or nothing was done: the lock is free, or the answer was no."""

FOUND_WRONG = 2
"""A verification has found something to change."""

USAGE = 64
"""Wrong usage: a value of an argument, or a URL."""

UNAVAILABLE = 69
"""No answer from a coordinator or a guard, or it could not say what has happened."""

IO_ERROR = 74
"""The output could not be written."""

BUSY = 75
"""The lock was not to be had in time."""

LOST = 76
"""The lock was lost, or a guard refused its fence as stale."""

CONFIG = 78
"""A retry does not help: no URL names a service, or a service refuses what it is asked for until its set-up changes."""

NOT_EXECUTABLE = 126
NOT_FOUND = 127

OF_SIGNAL = 128
"""Add the number of the signal that ended the child."""


def of(error: Exception) -> int:
    """Return the exit status of an error that a command has raised. Raise the error if it is a fault of this program.

    What no retry repairs is CONFIG, and not EX_NOPERM: whether a password, a right or a table is missing says the
    message, for not every service tells them apart.
    """
    match error:
        case NotAcquired():
            return BUSY
        case LeaseLost() | StaleFence() | UnclaimedFence():
            return LOST
        case CoordinatorUnavailable(refused=False) | GuardUnavailable() | OutcomeUnknown():
            return UNAVAILABLE
        case (
            NoUrl()
            | NoFile()
            | CoordinatorUnavailable()
            | GuardNotEnforceable()
            | MarkImplausible()
            | ModuleNotFoundError()
        ):
            return CONFIG
        case TypeError() | ValueError() | TooOld():
            return USAGE
    raise error
