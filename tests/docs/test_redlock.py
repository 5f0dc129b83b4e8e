"""The example of docs/coordinators/redlock.md runs as it stands, on five real servers."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.redlock import start_node

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "coordinators" / "redlock.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    with ExitStack() as stack:
        ports = [stack.enter_context(start_node()).port for _ in range(5)]
        text = EXAMPLES[0].replace('host=f"lock-{number}"', f'host="127.0.0.1", port={ports}[number - 1]')
        exec(text, names)
        assert int(capsys.readouterr().out) > 1e15
        names["coordinator"].close()
