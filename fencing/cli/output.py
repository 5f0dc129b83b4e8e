"""What the commands print: results to stdout, all else to stderr."""

from __future__ import annotations

import json
import sys
from typing import Any


class ClosedPipe(Exception):
    """Nobody reads what is printed any more, as in ``fencing list | head``.

    It is no BrokenPipeError: typer would end the process with status 1 for that.
    """


def say(text: str) -> None:
    """Print a line of a result.

    Raises:
        ClosedPipe: nobody reads it. The command ends.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError as error:
        raise ClosedPipe from error


def warn(text: str) -> None:
    """Print a line beside the result: a warning, or an error with what to do next."""
    print(f"fencing: {text}", file=sys.stderr, flush=True)


def say_json(value: Any) -> None:
    """Print a result for programs, one document on one line."""
    say(json.dumps(value, ensure_ascii=False, sort_keys=True))
