"""One probe of the store for all threads of a guard, or for all tasks."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine
from typing import Any

from fencing.kernel.effects import Plan, require_asyncio
from fencing.kernel.errors import GuardUnavailable
from fencing.kernel.process import after_fork
from fencing.kernel.waking import SafeEvent, safe_lock
from storage_guards.objects.base import ObjectGuard
from storage_guards.objects.probe import ProbeReport
from storage_guards.objects.requests import Deadline

PROBE_GRACE = 0.5
"""Extra seconds that others wait for a probe, so that the probe's own error comes first."""


class _Probe:
    """A probe that one thread does for all. It is over at its bound at the latest, even if its thread was
    interrupted."""

    def __init__(self, seconds: float) -> None:
        self.ended = SafeEvent()
        self._bound = Deadline(seconds + PROBE_GRACE)

    @property
    def is_over(self) -> bool:
        return self.ended.is_set() or self._bound.over


class ProbedOnce(ObjectGuard):
    """A guard whose threads share one probe."""

    def __init__(
        self, store: Any, *, prefix: str = "fencing/", timeout: float = 10.0, upload_timeout: float = 60.0
    ) -> None:
        super().__init__(store, prefix=prefix, timeout=timeout, upload_timeout=upload_timeout)
        self._choosing = safe_lock()  # held for a moment only, and never during a request
        self._probe: _Probe | None = None
        after_fork(self._in_child)

    def _in_child(self) -> None:
        self._choosing, self._probe = safe_lock(), None

    @abstractmethod
    def _run(self, plan: Plan[Any]) -> Any: ...

    def _verified(self, seconds: float) -> ProbeReport:
        if self._report is not None:
            return self._report
        deadline = Deadline(seconds)
        mine = _Probe(seconds)
        try:
            while self._report is None:
                with self._choosing:
                    probe = self._probe
                    if probe is None or probe.is_over:
                        probe = self._probe = mine
                if probe is mine:
                    return self._store_report(self._run(self._plan_probe(deadline.part())))
                if not probe.ended.wait(deadline.part()):
                    raise GuardUnavailable(
                        f"another thread's probe of the object store took over {seconds:.3g} s; retry"
                    )
            return self._report
        finally:
            mine.ended.set()


class AsyncProbedOnce(ObjectGuard):
    """A guard whose tasks share one probe, those of one event loop."""

    _verifying: tuple[asyncio.AbstractEventLoop, asyncio.Task[ProbeReport]] | None = None

    @abstractmethod
    def _run(self, plan: Plan[Any]) -> Coroutine[Any, Any, Any]: ...

    async def _verified(self, seconds: float) -> ProbeReport:
        if self._report is not None:
            return self._report
        require_asyncio()
        loop = asyncio.get_running_loop()
        if self._verifying is None or self._verifying[0] is not loop or self._verifying[1].done():
            self._verifying = loop, asyncio.ensure_future(self._run(self._plan_probe(seconds)))
            # The exception is retrieved, so that asyncio does not report it.
            self._verifying[1].add_done_callback(lambda task: task.cancelled() or task.exception())
        task = self._verifying[1]
        await asyncio.wait([task], timeout=seconds + PROBE_GRACE)  # a cancelled waiter does not cancel the probe
        if not task.done():
            raise GuardUnavailable(f"another task's probe of the object store took over {seconds:.3g} s; retry")
        if task.cancelled():  # not this task, so no CancelledError
            raise GuardUnavailable("the probe of the object store was cancelled; retry")
        return self._store_report(task.result())
