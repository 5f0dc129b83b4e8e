"""The first step of both middlewares: they parse the header of a request, and refuse what no mark may be raised by.

No fence is checked against a mark here: the guard does that. Here is decided who may claim, and which numbers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from fencing.kernel.admission import PLAUSIBLE_STEP, highest_plausible
from fencing.kernel.errors import MarkImplausible
from storage_guards.http.header import SCOPE_KEY, SIGNED_KEY, Headers, SignatureRequired, Signed, items
from storage_guards.http.problems import MALFORMED, Problem, problem_of
from storage_guards.http.signatures import check_keys, is_signed

MOST_AHEAD = PLAUSIBLE_STEP / 1e6
"""The highest ``max_ahead`` in seconds, 17 years: a coordinator can still mint above such a mark."""


class Screening:
    """The rules of a middleware.

    - Where there are keys, a claim needs a signature, and each signature must be right.
    - No number is far ahead of this clock. So no claim leaves a mark that a coordinator refuses to exceed.

    Args:
        keys: of which one must have signed a claim. None: claims need no signature, and may have none.
        max_ahead: seconds. None: the most.
    """

    def __init__(self, keys: Iterable[bytes] | None, max_ahead: float | None) -> None:
        self._keys = check_keys(keys)
        self._step = check_ahead(max_ahead)

    def received(
        self, headers: Headers, path: str, around: Mapping[str, Any], *, is_claim: bool
    ) -> dict[str, Any] | Problem:
        """Return what the scope or environ of a request gets, or the answer that refuses it.

        Args:
            headers: of the request.
            path: of the request, percent-decoded.
            around: its scope or environ. A middleware around this one may have checked the signatures already.
            is_claim: whether it raises marks.
        """
        try:
            found = items(headers)
            if not self._keys and SIGNED_KEY not in around and any(item.signature is not None for item in found):
                return MALFORMED
        except ValueError:
            return MALFORMED
        entries: dict[str, Any] = {SCOPE_KEY: tuple(item.fence for item in found)}
        try:
            if self._keys:
                signed = []
                for fence, signature in found:
                    if signature is not None and is_signed(self._keys, fence, path, signature):
                        signed.append(fence)
                    elif signature is not None or is_claim:
                        raise SignatureRequired(fence.resource, path)
                entries[SIGNED_KEY] = Signed(path, tuple(signed))
            if found:
                ceiling = highest_plausible(time.time_ns() // 1000, self._step)
                for fence, _ in found:
                    if fence.number > ceiling:
                        raise MarkImplausible(resource=fence.resource, number=fence.number, ceiling=ceiling)
        except (SignatureRequired, MarkImplausible) as error:
            refused = problem_of(error, entries)
            assert refused is not None
            return refused
        return entries


def check_ahead(seconds: object) -> int:
    """Return ``max_ahead`` in microseconds. Raise TypeError or ValueError otherwise."""
    if seconds is None:
        return PLAUSIBLE_STEP
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"max_ahead must be a number of seconds, not {type(seconds).__name__}")
    if not 0 < seconds <= MOST_AHEAD:
        raise ValueError(
            f"max_ahead is {seconds}: pass seconds above 0, at most {MOST_AHEAD:.0f} (17 years): above that a "
            f"coordinator might not mint"
        )
    return int(seconds * 1_000_000)
