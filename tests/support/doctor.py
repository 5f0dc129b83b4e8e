"""``fencing doctor`` in this process, and what it found."""

import contextlib
import io
import json
import os
from typing import NamedTuple
from unittest.mock import patch

from fencing.cli.app import run
from tests.support.commands import environment


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


def examined(*arguments: str, **variables: str) -> Report:
    """Run it in this process, with these variables. No others name services."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), patch.dict(os.environ, environment(**variables), clear=True):
        status = run(["doctor", *arguments, "--json"])
    return Report(status, json.loads(output.getvalue()))


def as_account(url: str, name: str, password: str) -> str:
    """Return a URL with an account, in place of the one that it has."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{name}:{password}@{rest.rpartition('@')[2]}"
