"""Server programs that come from npm."""

import os
import shutil
from pathlib import Path

from examples.servers.settings import named_by

_INSTALLED = Path(__file__).resolve().parents[3] / ".node" / "node_modules" / ".bin"


def find_npm_program(variable: str, *names: str) -> Path | None:
    """The program that the environment variable names; or else the first of `names` that is on PATH, or in .node,
    where `make node` installs them. None when there is none, or no Node.js to run it."""
    if shutil.which("node") is None:
        return None
    if named := named_by(variable):
        return Path(named).absolute() if os.access(named, os.X_OK) else None
    for folder in (None, str(_INSTALLED)):
        for name in names:
            if found := shutil.which(name, path=folder):
                return Path(found)
    return None
