"""A worker process: makes deposits at the service on command, and reports what happens, one JSON object a line.

Started by the director as ``python -m examples.http_service.worker NAME``.
"""

import sys
from collections.abc import Callable, Iterator

import httpx2

from examples.stage.coordinators import CHOICES
from examples.stage.reports import command, report, serve
from fencing import Coordinator, FencedLock, LeaseLost, StaleFence
from storage_guards import HTTPGuard, fenced


class Worker:
    def __init__(self, name: str, locks: Coordinator, service: str) -> None:
        self._name = name
        self._locks = locks
        self._client = httpx2.Client(base_url=service, timeout=60)
        self._guard = HTTPGuard("/claims", self._client)

    def deposit(self, how: str, resource: str, account: int, amount: int) -> None:
        lock = FencedLock(self._locks, resource, owner=self._name, guards=[self._guard])
        try:
            for _ in range(3):
                try:
                    self._attempt(lock, f"/{how}/{account}", resource, amount)
                    break
                except StaleFence as late:  # a refused deposit starts again
                    report("refused", reason=str(late), newest=late.mark.number if late.mark else None)
            else:
                raise TimeoutError(f"account {account} is too busy")
        except LeaseLost as loss:  # on leaving the block, when all has been written
            report("lost", reason=str(loss))
        else:
            report("released")
        report("done")

    def _attempt(self, lock: FencedLock, url: str, resource: str, amount: int) -> None:
        with lock.hold(timeout=10) as lease, fenced(self._client, lease):  # it claims at the service
            report("acquired", number=lease.fence.number)
            account = self._client.get(url)
            balance, version = account.json()["balance"], account.headers["ETag"]
            report("read", balance=balance, sum=balance + amount)
            answer = self._client.put(
                url,
                params={"resource": resource},
                content=body_of(balance + amount),
                headers={"If-Match": version},
            )
            answer.raise_for_status()
            report("wrote", balance=balance + amount)


def body_of(balance: int) -> Iterator[bytes]:
    """Send the body in two parts, with a pause between them as long as the director wants."""
    yield b'{"balance": '
    report("sending")
    command()
    yield b"%d}" % balance


def set_up(coordinator: str, address: str, service: str, ttl: float) -> Callable[..., None]:
    return Worker(sys.argv[1], CHOICES[coordinator].open(address, ttl=ttl), service).deposit


if __name__ == "__main__":
    serve(set_up)
