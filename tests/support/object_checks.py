"""Short forms for tests of object stores."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import obstore

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult, UpdateVersion
    from obstore.store import ObjectStore

CLIENTS = 8


def version(of: "PutResult | ObjectMeta") -> "UpdateVersion":
    """Return the version that a put can be conditional on; obstore takes no None."""
    known: UpdateVersion = {}
    if of["e_tag"] is not None:
        known["e_tag"] = of["e_tag"]
    if of["version"] is not None:
        known["version"] = of["version"]
    return known


def content(store: "ObjectStore", key: str) -> bytes:
    return bytes(obstore.get(store, key).bytes())


def at_once(work: Callable[[int], None]) -> None:
    """Run `work` in CLIENTS threads that start together; raises the first error."""
    together = threading.Barrier(CLIENTS)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            together.wait(60)
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "it hangs"
    if errors:
        raise errors[0]
