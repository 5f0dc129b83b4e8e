"""Servers in containers, where a Docker engine answers."""

import functools
import gc
import importlib.util
import os
import warnings
from pathlib import Path
from typing import Any

from examples.servers.local import ServerError, free_port


@functools.cache
def engine_answers() -> bool:
    """Whether a Docker engine answers a ping; the client binary alone is none. About a second at most."""
    if importlib.util.find_spec("testcontainers") is None or importlib.util.find_spec("docker") is None:
        return False
    if "DOCKER_HOST" not in os.environ and not Path("/var/run/docker.sock").exists():
        return False
    import docker

    with warnings.catch_warnings():
        # A failed attempt leaves an unclosed socket in a reference cycle: collect it here, and in silence.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            client = docker.from_env(timeout=1)
            try:
                return bool(client.ping())
            finally:
                client.close()
        except (docker.errors.DockerException, OSError):
            return False
        finally:
            gc.collect()


class Container:
    """A server in a container, on a port of this machine that stays the same when it is restarted.

    Started, not waited for: readiness is the caller's to judge. Its data goes with it.
    """

    pid = None

    def __init__(
        self, image: str, port_inside: int, command: list[str], environment: dict[str, str] | None = None
    ) -> None:
        import docker
        from testcontainers.core.container import DockerContainer

        self.port = free_port()
        container = DockerContainer(image).with_command(command).with_bind_ports(port_inside, self.port)
        for name, value in (environment or {}).items():
            container = container.with_env(name, value)
        self._container = container
        try:
            container.start()
        except (docker.errors.DockerException, OSError) as error:  # no image to be had, or the port taken
            container.stop()
            raise ServerError(f"could not start {image}: {error}") from error
        self.host = str(container.get_container_host_ip())

    @property
    def _handle(self) -> Any:
        return self._container.get_wrapped_container()

    @property
    def log(self) -> str:
        return str(self._handle.logs(tail=200).decode(errors="replace"))

    def freeze(self) -> None:
        self._handle.pause()

    def thaw(self) -> None:
        self._handle.unpause()

    def stop(self) -> None:
        self._handle.stop(timeout=10)

    def kill(self) -> None:
        self._handle.kill()

    def restart(self, *, keep_data: bool) -> None:
        if not keep_data:
            raise ServerError("a container keeps its data when restarted")
        self._handle.restart(timeout=10)

    def close(self) -> None:
        self._container.stop()
