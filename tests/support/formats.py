"""What is kept has one form, which every client of this version reads: tests hold it against golden bytes."""

from __future__ import annotations

CHANGED = "this is a change of format: raise the version, say how old and new run together"


def unchanged(name: str, found: object, golden: object) -> None:
    """Raise AssertionError where a kept thing is not what it was; the message shows both.

    Args:
        name: what is kept, such as "the hash of a mark".
        found: its form now: bytes, a text, or a container of them. What differs in each run, such as times and random
            ids, is replaced before.
        golden: its form when this version of the format was made.
    """
    # No assert: the message has to be the same where Python runs with -O.
    if type(found) is not type(golden) or found != golden:
        raise AssertionError(f"{name}: {CHANGED}\n  found:  {found!r}\n  golden: {golden!r}")
