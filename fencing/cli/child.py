"""A command under a lock: its process group, its terminal, its signals, and how it ends.

The command runs in a process group of its own. So what it has started ends together with it when the lock is lost.
Three processes take part: this one, the command, and a watcher, which ends the group where this one was killed.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from fencing import Lease, LeaseLost
from fencing.cli import status, watcher
from fencing.cli.output import warn
from fencing.cli.signals import ENDING, Signals
from fencing.cli.terminal import Terminal, is_in_pipeline, own_terminal

STOP_SECONDS = 0.25
"""How long this process waits to be stopped. Without a shell that could continue it, the kernel does not stop it."""

ANSWER_SECONDS = 5.0
"""How long an answer of the watcher is waited for. On a busy machine, Python takes a while to start."""

RECHECK_SECONDS = 0.05
"""Between two looks whether a process of the group is left. No signal tells that."""

KEYS = {status.OF_SIGNAL + number: number for number in (signal.SIGINT, signal.SIGQUIT)}
"""How a command ends at Ctrl-C or Ctrl-\\. The terminal would have sent that signal to our own group as well, had the
command not been in the foreground. So the group gets it: an election ends, and other commands of the job."""


class NotStarted(Exception):
    """The command could not be started.

    Attributes:
        status: the exit status that a shell gives it.
    """

    def __init__(self, name: str, error: OSError) -> None:
        self.status = status.NOT_FOUND if isinstance(error, FileNotFoundError) else status.NOT_EXECUTABLE
        super().__init__(f"{name!r} cannot be started: {error.strerror}; check its name, its path and its rights")


class Watcher:
    """The process that gives the group its id, and ends the group where this process is killed."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._process = self._start(0)
        self.group = self._process.pid
        self._is_ready = False

    def _start(self, group: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", watcher.__file__, str(self._grace), str(os.getpgrp()), str(group)]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0, process_group=group
        )

    def replace(self) -> None:
        """Start another one, where somebody has killed it. It joins the group, if there is still one."""
        self.close()
        with suppress(OSError):
            self._process = self._start(self.group)
            self._answers()

    @property
    def is_alive(self) -> bool:
        """Whether it was not killed, as by a command that kills its whole group."""
        return self._process.poll() is None

    def wait(self) -> None:
        """Wait until it watches.

        Raises:
            OSError: it could not start.
        """
        if not self._is_ready and not self._answers():
            raise OSError("the process that watches it did not start")
        self._is_ready = True

    def leave(self) -> None:
        """Let it leave the group, so that it can be seen whether the group is empty."""
        self._send(watcher.LEAVE)
        self._answers()

    def join(self) -> None:
        """Let it be in the group again."""
        self._send(watcher.JOIN)
        self._answers()

    def close(self) -> None:
        """End it, also where it is stopped, and leave the group as it is."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait()

    def _send(self, word: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(word)

    def _answers(self) -> bool:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS)
        return bool(ready) and bool(self._process.stdout.read(1))


class Runner:
    """Runs commands, one after the other, each under a lease.

    Args:
        signals: of this process.
        grace: seconds between SIGTERM and SIGKILL, once a lock is lost.
    """

    def __init__(self, signals: Signals, grace: float) -> None:
        self._signals = signals
        self._grace = grace
        self._terminal = own_terminal()
        self._watcher = Watcher(grace)  # now: it starts while the lock is waited for

    def close(self) -> None:
        """End what is beside the command."""
        self._watcher.close()

    def run(self, command: Sequence[str], environment: Mapping[str, str], lease: Lease) -> int:
        """Run a command, and return its status, as a shell has it.

        From here on, signals are noted and passed on. They raise nothing until ``signals.are_noted`` is reset.

        Raises:
            NotStarted: there is no such command, or it cannot be executed.
            LeaseLost: the lock was lost, and the command was ended.
        """
        self._signals.note()
        self._signals.note_stops()
        try:
            if not self._watcher.is_alive:
                self._watcher.close()
                self._watcher = Watcher(self._grace)
            self._watcher.wait()
            group = self._watcher.group
            terminal = self._terminal
            if terminal is not None and not is_in_pipeline():
                # Before it starts: a command that reads from a terminal that is not its own is stopped.
                terminal.lend(group)
            wait_status, had_terminal = None, False
            try:
                child = Child(self._start(command, environment, group), group, self._signals, terminal)
                wait_status = child.wait(lease, self._watcher, self._grace)
            finally:
                if terminal is not None:
                    had_terminal = terminal.take_back(modes=wait_status is None or os.WIFSIGNALED(wait_status))
        finally:
            self._signals.allow_stops()
        code = os.waitstatus_to_exitcode(wait_status)
        its_status = status.OF_SIGNAL - code if code < 0 else code
        if had_terminal and its_status in KEYS:
            os.killpg(os.getpgrp(), KEYS[its_status])
        return its_status

    @staticmethod
    def _start(command: Sequence[str], environment: Mapping[str, str], group: int) -> int:
        # Not fork, for the coordinator has threads. Python ignores two signals, and the command shall not.
        ignored = [signal.SIGPIPE, signal.SIGXFSZ]
        try:
            return os.posix_spawnp(command[0], list(command), environment, setpgroup=group, setsigdef=ignored)
        except OSError as error:
            raise NotStarted(command[0], error) from error


class Child:
    """The command while it runs."""

    def __init__(self, pid: int, group: int, signals: Signals, terminal: Terminal | None) -> None:
        self._pid = pid
        self._group = group
        self._signals = signals
        self._terminal = terminal
        self._wait_status: int | None = None
        self._loss: LeaseLost | None = None

    def wait(self, lease: Lease, watcher: Watcher, grace: float) -> int:
        """Wait until the command has ended, and return what ``waitpid`` says of it. Raise LeaseLost, if it was lost."""
        lease.on_lost(self._on_lost)
        while self._loss is None:
            self._pass_on(lease)
            self._reap(lease)
            if self._wait_status is not None:
                return self._wait_status
            if not watcher.is_alive:
                watcher.replace()
            if self._loss is None:
                self._signals.wait(None)
        self._end(watcher, grace)
        raise self._loss

    def _on_lost(self, error: LeaseLost) -> None:
        self._loss = error
        self._signals.wake()

    def _pass_on(self, lease: Lease) -> None:
        """Pass on the signals that have come."""
        while self._signals.came:
            number = self._signals.came.popleft()
            if number == signal.SIGCONT:
                self._continue(lease)
            elif number in ENDING or number in (signal.SIGTSTP, signal.SIGWINCH):
                self._kill(number)
            elif number != signal.SIGCHLD:
                self._kill(number, group=False)

    def _kill(self, number: int, *, group: bool = True) -> None:
        """Send a signal to the group, and to the command if it has left the group, as an interactive shell does."""
        with suppress(ProcessLookupError, PermissionError):
            if group:
                os.killpg(self._group, number)
        with suppress(ProcessLookupError, PermissionError):
            if self._wait_status is None and (not group or os.getpgid(self._pid) != self._group):
                os.kill(self._pid, number)

    def _reap(self, lease: Lease) -> None:
        """Look whether the command has ended, or is stopped."""
        while self._wait_status is None:
            pid, wait_status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
            if not pid:
                return
            if os.WIFSTOPPED(wait_status):
                self._on_stop(os.WSTOPSIG(wait_status), lease)
            else:
                self._wait_status = wait_status

    def _on_stop(self, number: int, lease: Lease) -> None:
        """Stop this process as well, so that the shell has its terminal; or give the command the keyboard it needs."""
        if self._terminal is None or self._loss is not None:
            return  # whoever has stopped it continues it
        needs_terminal = number in (signal.SIGTTIN, signal.SIGTTOU)
        if not (needs_terminal and self._terminal.is_ours):
            is_lent = self._terminal.take_back()
            if not is_lent and number == signal.SIGSTOP:
                return
            self._signals.allow_stops()
            os.killpg(os.getpgrp(), signal.SIGTSTP)  # all of the job, as Ctrl-Z does
            self._signals.wait(STOP_SECONDS)
            self._signals.note_stops()
        else:
            self._terminal.lend(self._group)
        self._continue(lease)

    def _continue(self, lease: Lease) -> None:
        """Let the command go on, unless the lock was lost meanwhile."""
        try:
            lease.ensure_held()
        except LeaseLost as error:
            self._loss = self._loss or error
            return
        if self._terminal is not None and not is_in_pipeline():
            self._terminal.lend(self._group)
        self._kill(signal.SIGCONT)

    def _end(self, watcher: Watcher, grace: float) -> None:
        """End the command and all that is left of its group: SIGTERM, then SIGKILL when the grace is over."""
        kill_at = time.monotonic() + grace
        self._kill(signal.SIGTERM)
        self._kill(signal.SIGCONT)
        watcher.leave()  # now, for it may be slow to answer
        while self._is_left() and (left := kill_at - time.monotonic()) > 0:
            self._signals.wait(min(left, RECHECK_SECONDS))
        self._kill(signal.SIGKILL)
        if self._wait_status is None:
            _, self._wait_status = os.waitpid(self._pid, 0)
        watcher.join()
        with suppress(OSError):  # now, for nobody may read it, and a full pipe would have kept the command alive
            warn("the lock was lost, so the command was ended, with all of its process group")

    def _is_left(self) -> bool:
        """Return whether the command, or a process of its group, has not ended."""
        if self._wait_status is None:
            pid, wait_status = os.waitpid(self._pid, os.WNOHANG)
            if not pid:
                return True
            self._wait_status = wait_status
        try:
            os.killpg(self._group, 0)
        except OSError:
            return False
        return True
