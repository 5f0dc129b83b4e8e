"""Exit statuses. Those from 64 to 78 are of BSD's sysexits(3), those from 126 on of POSIX shells."""

from __future__ import annotations

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
"""No URL names the service."""

NOT_EXECUTABLE = 126
NOT_FOUND = 127

OF_SIGNAL = 128
"""Add the number of the signal that ended the child."""
