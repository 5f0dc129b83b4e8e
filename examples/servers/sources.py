"""The order in which servers are looked for: that of FENCING_SERVERS."""

from collections.abc import Callable
from typing import TypeVar

from examples.servers import docker
from examples.servers.local import ServerError
from examples.servers.server import Server
from examples.servers.settings import SOURCES_VARIABLE, sources

S = TypeVar("S", bound=Server)


def start_first(start: Callable[[str], S | None], start_container: Callable[[], S] | None, refusal: str) -> S:
    """Start a server from the first source that has it; raises ServerError, with `refusal`, when none has.

    `start`: starts it from "path" or "wheels"; None: it is not there. `start_container`: None: it may not be in one.
    """
    failed = None
    for source in sources():
        if source != "docker":
            if (server := start(source)) is not None:
                return server
        elif start_container is not None and docker.engine_answers():
            try:
                return start_container()
            except ServerError as error:  # an engine that cannot get the image is as good as none
                failed = error
    raise ServerError(f"{refusal} (looked in {SOURCES_VARIABLE}={','.join(sources())})") from failed
