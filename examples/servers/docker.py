"""Servers in containers, where a Docker engine answers."""

import functools
import gc
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from examples.servers.local import ServerError, free_port
from examples.servers.settings import SOURCES_VARIABLE, is_docker_chosen, sources


def engine_answers() -> bool:
    """Whether servers may come from Docker, and an engine answers a ping; the client binary alone is none."""
    return "docker" in sources() and _answers(os.environ.get("DOCKER_HOST"))


def may_serve(*, found_elsewhere: bool) -> bool:
    """Whether a server may come from Docker: somebody asked for that, or there is no other."""
    return engine_answers() and (is_docker_chosen() or not found_elsewhere)


@functools.cache
def _answers(host: str | None) -> bool:
    """Ping the engine. About a second at most."""
    if importlib.util.find_spec("testcontainers") is None or importlib.util.find_spec("docker") is None:
        return False
    if host is None and not Path("/var/run/docker.sock").exists():
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


def _announce(image: str) -> None:
    """Say before it happens that Docker is used, where nobody asked for it, and that it loads an image."""
    import docker

    client = docker.from_env()
    try:
        client.images.get(image)
        loads = False
    except docker.errors.DockerException:
        loads = True
    finally:
        client.close()
    if loads or not is_docker_chosen():
        then = ", which loads the image first" if loads else ""
        print(f"Starting {image} in Docker{then}. {SOURCES_VARIABLE}=path,wheels leaves Docker out.", file=sys.stderr)


class Container:
    """A server in a container, on a port of this machine that stays the same when it is restarted.

    Started, not waited for: readiness is the caller's to judge. Its data goes with it.
    """

    pid = None

    def __init__(
        self,
        make: Callable[[str], Any],
        image: str,
        port_inside: int,
        command: list[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start what `make` makes of the image: a container of testcontainers."""
        import docker

        self.port = free_port()
        _announce(image)
        container = make(image).with_command(command).with_bind_ports(port_inside, self.port)
        container.with_envs(**(environment or {}))
        self._container = container
        try:
            container.start()
        except (docker.errors.DockerException, OSError, RuntimeError) as error:  # no image, the port taken, never ready
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
