"""``fencing doctor``, in this process and as one of its own."""

import contextlib
import io
import json
import os
import subprocess
import sys
from typing import NamedTuple

from fencing.cli.app import run


class Report(NamedTuple):
    """What the doctor said, and its exit status."""

    status: int
    findings: list[dict[str, str]]

    def one(self, *words: str) -> dict[str, str]:
        """Return the only finding whose first line has these words."""
        found = [each for each in self.findings if all(word in each["what"] for word in words)]
        assert len(found) == 1, f"{words}: {[each['what'] for each in found or self.findings]}"
        return found[0]

    def level(self, *words: str) -> str:
        """Return the level of the only finding with these words."""
        return self.one(*words)["level"]

    def levels(self, *words: str) -> list[str]:
        """Return the levels of all findings with these words."""
        return [each["level"] for each in self.findings if all(word in each["what"] for word in words)]


def examined(*arguments: str) -> Report:
    """Run it in this process."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = run(["doctor", *arguments, "--json"])
    return Report(status, json.loads(output.getvalue()))


def doctor_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it as a process, without a terminal."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FENCING_")}
    return subprocess.run(
        [sys.executable, "-m", "fencing", "doctor", *arguments],
        capture_output=True,
        text=True,
        env={**clean, **environment},
        timeout=120,
        check=False,
    )


def as_account(url: str, name: str, password: str) -> str:
    """Return a URL with an account, in place of the one that it has."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{name}:{password}@{rest.rpartition('@')[2]}"
