"""What the commands print: results to stdout, all else to stderr."""

from __future__ import annotations

import json
import sys
from typing import Any


def say(text: str) -> None:
    """Print a line of a result."""
    print(text, flush=True)


def warn(text: str) -> None:
    """Print a line beside the result: a warning, or an error with what to do next."""
    print(f"fencing: {text}", file=sys.stderr, flush=True)


def say_json(value: Any) -> None:
    """Print a result for programs, one document on one line."""
    print(json.dumps(value, ensure_ascii=False, sort_keys=True), flush=True)
