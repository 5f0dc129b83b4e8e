"""Where the servers lie that come as Python wheels."""

import importlib.util
from pathlib import Path

_SERVERS = Path(__file__).parents[2] / ".servers"
"""A venv of a Python that has wheels of them all: for tests under another Python."""


def find_in_wheel(package: str, *patterns: str) -> list[Path]:
    """Return what matches in an installed package, the first pattern first. The package's own code is not run."""
    spec = importlib.util.find_spec(package)
    roots = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    roots += sorted(_SERVERS.glob(f"lib/python*/site-packages/{package}"))
    return [path for root in roots for pattern in patterns for path in sorted(root.glob(pattern))]
