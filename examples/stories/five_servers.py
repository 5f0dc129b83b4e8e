"""Five independent Redis servers of a story: each behind a proxy, so that it can be out of reach."""

from collections.abc import Collection
from contextlib import ExitStack

from examples.servers import FakeClock, start_redis
from examples.servers.proxy import Proxy
from examples.servers.redis import version_for_clocks
from examples.stage.coordinators import CHOICES, LONGEST_TTL
from examples.stage.tale import Scene

ALL = (1, 2, 3, 4, 5)
JUMP = 3600
"""Seconds, of a clock."""


class FiveServers:
    """They start at once, and `stack` removes them.

    `clocks`: their clocks can jump. `longest_ttl`: for how long one that comes back grants nothing to this library.
    """

    def __init__(self, stack: ExitStack, scene: Scene, *, clocks: bool, longest_ttl: float = LONGEST_TTL) -> None:
        self._scene = scene
        self._clocks = {number: stack.enter_context(FakeClock()) for number in ALL if clocks}
        self._servers = {}
        for number in ALL:
            environment = self._clocks[number].environment if clocks else None
            version = version_for_clocks() if clocks else None
            server = start_redis(own=True, local=True, version=version, environment=environment)
            self._servers[number] = stack.enter_context(server)
        self._proxies = {n: stack.enter_context(Proxy(server.host, server.port)) for n, server in self._servers.items()}
        self.address = ",".join(self._proxies[number].url(server.url) for number, server in self._servers.items())
        self.direct = ",".join(server.url for server in self._servers.values())
        """Their addresses without the proxies."""
        with CHOICES["redlock"].open(self.direct, ttl=min(longest_ttl, 10.0), longest_ttl=longest_ttl) as coordinator:
            coordinator.initialise()  # type: ignore[attr-defined]

    def reach(self, numbers: Collection[int], name: str) -> None:
        """Let only these be reached, from now on."""
        for number, proxy in self._proxies.items():
            proxy.restore() if number in numbers else proxy.refuse()
        missing = [str(number) for number in ALL if number not in numbers]
        self._note(f"{name} cannot reach {', '.join(missing)}" if missing else f"{name} reaches all")

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            self._servers[number].kill()
        self._note(f"{_listed(numbers)} died", "killed")

    def restart(self, *numbers: int) -> None:
        """Restart some with their data."""
        for number in numbers:
            self._servers[number].restart()
        self._note(f"{_listed(numbers)} came back, with the data")

    def freeze(self, *numbers: int) -> None:
        for number in numbers:
            self._servers[number].freeze()
        self._note(f"{_listed(numbers)} hang")

    def thaw(self, *numbers: int) -> None:
        for number in numbers:
            self._servers[number].thaw()
        self._note(f"{_listed(numbers)} go on")

    def restart_empty(self, number: int) -> None:
        """Restart one without its data."""
        self._servers[number].kill()
        self._servers[number].restart(keep_data=False)
        self._note(f"{number} restarts, empty", "killed")

    def jump(self, *numbers: int) -> None:
        """Set the clocks of some forward, until they say so."""
        for number in numbers:
            with self._servers[number].client() as client:
                before = client.time()[0]
                self._clocks[number].set(JUMP)
                self._scene.passes(lambda before=before, client=client: client.time()[0] > before + JUMP / 2)  # type: ignore[misc]
        self._note(f"clocks of {_listed(numbers)} jump {JUMP} s", "jumped")

    def wait_for_expiry(self, key: str) -> None:
        """Wait until no server has the lock."""
        for server in self._servers.values():
            with server.client() as client:
                self._scene.passes(lambda client=client: not client.exists(key))  # type: ignore[misc]
        self._note("the lock has expired")

    def _note(self, text: str, kind: str = "found") -> None:
        self._scene.recorder.add("nodes", kind, text)


def _listed(numbers: Collection[int]) -> str:
    """Return "3 and 4"."""
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last
