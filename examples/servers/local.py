"""A server started from its binary: on a free port, in a directory of its own, never left behind."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from examples.servers.freezing import freeze

START_TIMEOUT = 60.0
STOP_TIMEOUT = 10.0

_NOBODY = 65534

# A shell blocked on a pipe that only we hold open. A line on it says that all is over; its bare end says that
# this interpreter died (whatever killed it): then the shell ends the server and removes its directory.
# Unlike PR_SET_PDEATHSIG this works on macOS too, and the server outlives the thread that started it.
_WATCHER = """
read -r _ && exit 0
kill -s "$2" "$1" 2>/dev/null
i=0
while [ "$2" != KILL ] && [ $i -lt 20 ] && kill -s 0 "$1" 2>/dev/null; do sleep 0.1; i=$((i + 1)); done
kill -s KILL "$1" 2>/dev/null
i=0
while [ $i -lt 10 ] && ! rm -rf "$3" 2>/dev/null; do sleep 0.1; i=$((i + 1)); done
"""


class ServerError(RuntimeError):
    """A server could not be found, started or handled as asked; `log` is what the server said."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(f"{message}\n--- server log ---\n{log}" if log else message)
        self.log = log


class Host(Protocol):
    """What runs a server: a local process, a container, or somebody else."""

    @property
    def pid(self) -> int | None: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def restart(self, *, keep_data: bool) -> None: ...
    def close(self) -> None: ...


class ExternalHost:
    """A server that somebody else runs, named by an environment variable: it can be used, not handled."""

    pid = None

    def __init__(self, variable: str) -> None:
        self._variable = variable

    def _refuse(self) -> None:
        raise ServerError(f"the server named by {self._variable} is not ours to freeze, stop or restart")

    def freeze(self) -> None:
        self._refuse()

    def thaw(self) -> None:
        self._refuse()

    def stop(self) -> None:
        self._refuse()

    def kill(self) -> None:
        self._refuse()

    def restart(self, *, keep_data: bool) -> None:
        self._refuse()

    def close(self) -> None:
        pass


def free_port(second: int = 0) -> int:
    """A port nobody listens on now, nor on the one that is `second` above it. Below the usual ephemeral range, so that
    no outgoing connection takes it while a server restarts; whoever starts a server on it still has to cope with having
    lost it."""
    for _ in range(100):
        port = random.randrange(15_000, 32_000 - second)
        with socket.socket() as probe, socket.socket() as other:
            try:
                probe.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + second if second else 0))
            except OSError:
                continue
            return port
    raise ServerError("found no free port in 100 attempts")


def new_directory(user: int | None = None) -> Path:
    """A new temporary directory that `user` (default: ourselves) owns and can reach."""
    for parent in dict.fromkeys([tempfile.gettempdir(), "/tmp", "/var/tmp"]):
        path = Path(tempfile.mkdtemp(prefix="fencing-", dir=parent))
        if user is None:
            return path
        os.chown(path, user, user)
        # Tried rather than computed: any directory above may be closed to that user.
        if run_as(user, ["/bin/sh", "-c", ': > "$1/probe" && rm "$1/probe"', "sh", str(path)]):
            return path
        shutil.rmtree(path)
    raise ServerError(f"found no temporary directory that user {user} can write to")


def not_root() -> int | None:
    """The user for a server that refuses to run as root; None: ourselves."""
    return _NOBODY if os.geteuid() == 0 else None


@contextlib.contextmanager
def prepared_directory(user: int | None) -> Iterator[Path]:
    """A `new_directory`; it is removed again where the block, which makes a server's files in it, fails."""
    directory = new_directory(user)
    try:
        yield directory
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def install(
    command: Sequence[str], *, directory: Path, user: int | None, environment: Mapping[str, str] | None = None
) -> None:
    """Run a program that makes a server's data."""
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
    if done.returncode != 0:
        raise ServerError(f"{Path(command[0]).name} failed", done.stdout + done.stderr)


def run_as(user: int, command: Sequence[str]) -> bool:
    """Whether `command` succeeds as `user`."""
    try:
        done = subprocess.run(
            command,
            user=user,
            group=user,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            timeout=START_TIMEOUT,
        )
    except PermissionError:
        return False
    return done.returncode == 0


class LocalProcess:
    """A server process that can be frozen, killed and started again on its port.

    `command` makes the command line for a port and must keep to `directory`. `ready` says, from the process's
    own files (the port alone could be answered by a stranger), whether it serves. `clashed` says from its log
    whether it lost its port to somebody else. `second_port`: how far above its port another one is that it needs.
    """

    def __init__(
        self,
        *,
        command: Callable[[int], Sequence[str]],
        directory: Path,
        data: Path,
        ready: Callable[["LocalProcess"], bool],
        clashed: Callable[[str], bool],
        stop_signal: signal.Signals = signal.SIGTERM,
        kill_signal: signal.Signals = signal.SIGKILL,
        user: int | None = None,
        environment: Mapping[str, str] | None = None,
        second_port: int = 0,
    ) -> None:
        self._command = command
        self._directory = directory
        self._data = data
        self._ready = ready
        self._clashed = clashed
        self._stop_signal = stop_signal
        self._kill_signal = kill_signal
        self._user = user
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._log = directory / "log"
        self.port = 0
        try:
            for _ in range(5):
                self.port = free_port(second_port)
                if self._start():
                    return
            raise ServerError("lost five free ports in a row to somebody else", self.log)
        except BaseException:
            self.close()
            raise

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def has_ended(self) -> bool:
        """Whether the process runs no more, by itself or because it was ended."""
        return self._process is None or self._process.poll() is not None

    def _start(self) -> bool:
        """Start on `port` and wait until it serves; False if the port was taken."""
        self._data.mkdir(exist_ok=True)
        if self._user is not None:
            os.chown(self._data, self._user, self._user)
        try:
            # Sessions of their own: a Ctrl-C at the terminal reaches us alone, and we end them in order.
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    self._command(self.port),
                    cwd=self._data,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    user=self._user,
                    group=self._user,
                    extra_groups=None if self._user is None else [],
                )
            signal_name = self._kill_signal.name.removeprefix("SIG")
            self._watcher = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHER, "sh", str(self._process.pid), signal_name, str(self._directory)],
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            deadline = time.monotonic() + START_TIMEOUT
            while not self._ready(self):
                if self._process.poll() is not None:
                    if self._clashed(self.log):
                        self._end(self._kill_signal)
                        return False
                    raise ServerError(f"the server exited with {self._process.returncode}", self.log)
                if time.monotonic() > deadline:
                    raise ServerError(f"the server was not ready after {START_TIMEOUT} s", self.log)
                time.sleep(0.005)
        except BaseException:
            self._end(signal.SIGKILL)
            raise
        return True

    def _end(self, with_signal: signal.Signals) -> None:
        """End the process, then its watcher; nothing to do when it is gone already."""
        process, self._process = self._process, None
        watcher, self._watcher = self._watcher, None
        if process is not None and process.poll() is None:
            process.send_signal(with_signal)
            process.send_signal(signal.SIGCONT)  # a frozen process would not notice
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(START_TIMEOUT)  # a machine with a slow disk lets it finish what it writes
        if watcher is not None:
            watcher.communicate(b"over\n", timeout=START_TIMEOUT)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise ServerError("the server is not running", self.log)
        return self._process

    def freeze(self) -> None:
        """SIGSTOP. When it returns, the process has stopped."""
        freeze(self._running())

    def thaw(self) -> None:
        """SIGCONT."""
        self._running().send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._end(self._stop_signal)

    def kill(self) -> None:
        self._end(self._kill_signal)

    def restart(self, *, keep_data: bool) -> None:
        self.stop()
        if not keep_data:
            shutil.rmtree(self._data)
        for _ in range(50):
            if self._start():
                return
            time.sleep(0.1)
        raise ServerError(f"port {self.port} stayed taken by somebody else", self.log)

    def close(self) -> None:
        """Kill the process, remove the directory."""
        try:
            self.kill()
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)
