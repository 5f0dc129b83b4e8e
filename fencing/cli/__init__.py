"""The command line: ``fencing``, or ``python -m fencing``."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line, and return its exit status."""
    try:
        from fencing.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(
            f"fencing needs {error.name}, which is not installed: install fencing with the extra [cli]", file=sys.stderr
        )
        return 78
    return run()
