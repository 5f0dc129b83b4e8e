"""Where the servers lie that come as Python wheels."""

import importlib.util
from pathlib import Path


def find_in_wheel(package: str, *patterns: str) -> list[Path]:
    """Return what matches in an installed package, the first pattern first. The package's own code is not run."""
    spec = importlib.util.find_spec(package)
    roots = (spec.submodule_search_locations or ()) if spec else ()
    return [path for root in roots for pattern in patterns for path in sorted(Path(root).glob(pattern))]
