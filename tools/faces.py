"""Make the sync faces from the async ones.

python -m tools.faces            (or: make faces)
python -m tools.faces --check    (does each file hold what this command would write?)
"""

from __future__ import annotations

import argparse
import re
import sys
import tokenize
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tools.sides import sync_side

ROOT = Path(__file__).resolve().parents[1]
COMMAND = "make faces"


class Pair(NamedTuple):
    """An async source, and the sync file that is made from it; from the project's root."""

    source: str
    face: str


PAIRS = tuple(
    Pair(f"{name}_async.py", f"{name}.py")
    for name in (
        "fencing/compat/redis_py",
        "fencing/coordinator",
        "fencing/election/election",
        "fencing/etcd/coordinator",
        "fencing/locks/hold",
        "fencing/locks/hold_several",
        "fencing/locks/lock",
        "fencing/locks/slots",
        "fencing/memory/coordinator",
        "fencing/redis/coordinator",
        "fencing/redlock/coordinator",
        "fencing/sql/coordinator",
        "fencing/zookeeper/coordinator",
        "storage_guards/files/guard",
        "storage_guards/http/guard",
        "storage_guards/memory/guard",
        "storage_guards/objects/guard",
        "storage_guards/objects/publication",
        "storage_guards/objects/staging",
        "storage_guards/psycopg/guard",
        "storage_guards/redis/guard",
        "storage_guards/sql/operations",
        "storage_guards/sqlalchemy/guard",
    )
)


def head(pair: Pair) -> str:
    """Return the comment at the top of a file that was made."""
    return f"# Made from {Path(pair.source).name} by `{COMMAND}`: change that file, not this one.\n"


def made(pair: Pair, root: Path = ROOT) -> str:
    """Return what the sync file must hold."""
    try:
        text = sync_side((root / pair.source).read_text("utf-8"))
    except (ValueError, SyntaxError, tokenize.TokenError) as error:
        raise SystemExit(f"{pair.source}: {error}") from None
    left = [line.strip() for line in text.splitlines() if re.search(r"#\s*A?SYNC\b", line)]
    if left:
        raise SystemExit(f"{pair.source}: this is no mark that `{COMMAND}` knows: {left[0]}")
    return head(pair) + text


def make(root: Path = ROOT, pairs: Sequence[Pair] = PAIRS) -> list[str]:
    """Write the sync files that are not as they must be, and return their names."""
    changed = []
    for pair in pairs:
        text = made(pair, root)
        file = root / pair.face
        if not file.is_file() or file.read_text("utf-8") != text:
            file.write_text(text, "utf-8")
            changed.append(pair.face)
    return changed


def differing(root: Path = ROOT, pairs: Sequence[Pair] = PAIRS) -> list[str]:
    """Return the sync files that are not what this command writes."""
    return [
        pair.face
        for pair in pairs
        if not (root / pair.face).is_file() or (root / pair.face).read_text("utf-8") != made(pair, root)
    ]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.faces", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file would change")
    if parser.parse_args(arguments).check:
        wrong = differing(root)
        for face in wrong:
            print(f"{face} is not what its async source makes; run `{COMMAND}`", file=sys.stderr)
        return 1 if wrong else 0
    for face in make(root):
        print(f"wrote {face}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
