"""A TCP proxy that loses what it is told to lose: replies, requests, everything."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

_CONTROL_TIMEOUT = 30.0
_CHUNK = 65_536

T = TypeVar("T")
Predicate = Callable[[bytes], bool]


What = Literal["request", "reply", "silence", "hold", "stall"]


class Loss:
    """A loss that was asked for. `fired`: how often it has happened, counted before the client can notice."""

    def __init__(
        self, predicate: Predicate, what: What, times: int, proxy: "Proxy", cut_when: Predicate | None = None
    ) -> None:
        self._predicate = predicate
        self._cut_when = cut_when
        self._what = what
        self._times = times
        self._proxy = proxy
        self._happened = threading.Condition()
        self._released = asyncio.Event()
        self._delivering = False
        self._ended = asyncio.Event()
        self.fired = 0

    def wait(self, timeout: float, *, times: int = 1) -> bool:
        """Whether it has happened `times` times, within `timeout` seconds."""
        with self._happened:
            return self._happened.wait_for(lambda: self.fired >= times, timeout)

    def deliver(self, timeout: float = _CONTROL_TIMEOUT) -> bool:
        """Pass on what a stalled connection has sent until now, in order, and end the connection behind it.

        Returns when the server has worked it off: when it has ended the connection on its side, too. False: no request
        has matched, and none will any more. Raises `TimeoutError` if the server has not after `timeout` seconds.
        """
        return self._proxy._call(self._deliver(timeout))

    async def _deliver(self, timeout: float) -> bool:
        self._times = 0
        if not self.fired:
            return False
        self._delivering = True
        self._released.set()
        await asyncio.wait_for(self._ended.wait(), timeout)
        return True

    def _matches(self, request: bytes) -> bool:
        return self._times > 0 and self._predicate(request)

    def _fire(self) -> None:
        with self._happened:
            self.fired += 1
            self._happened.notify_all()


class _Drips:
    """How many seconds pass after each byte; 0.0: it passes all at once."""

    def __init__(self) -> None:
        self.requests = 0.0
        self.replies = 0.0


class Proxy:
    """Passes connections on to a server. Works in a thread of its own; a context manager.

    A request is what a client sent since the last reply it got, so a predicate sees it whole even when it
    comes in pieces (it may be called for each longer piece). What a control method asks for holds when it
    returns. It listens on `port`; 0: on a free one. A server that refuses is asked again for `patience` seconds.
    """

    def __init__(self, target_host: str, target_port: int, port: int = 0, *, patience: float = 0.0) -> None:
        self._target = (target_host, target_port)
        self._patience = patience
        self._port = port
        self._losses: list[Loss] = []
        self._errors: list[BaseException] = []
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._drips = _Drips()
        self._refusing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._flowing, self._server = self._call(self._open())
        self.host, self.port = self._server.sockets[0].getsockname()[:2]

    def retarget(self, server: Any) -> None:
        """Pass new connections on to another server, as an address that moves does. Those that are open stay."""
        self._target = (server.host, server.port)

    async def _open(self) -> tuple[asyncio.Event, asyncio.Server]:
        flowing = asyncio.Event()
        flowing.set()
        return flowing, await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    def url(self, url: str) -> str:
        """The same URL, through this proxy."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{at}{self.host}:{self.port}").geturl()

    # Control: from any thread

    def drop_reply_when(self, predicate: Predicate, *, times: int = 1) -> Loss:
        """Pass the next `times` requests that match on, await the server's reply, and instead of passing it
        back close the connection: the request was carried out, and the client cannot know."""
        return self._add(Loss(predicate, "reply", times, self))

    def drop_request_when(self, predicate: Predicate, *, times: int = 1) -> Loss:
        """Close the connection on the next `times` requests that match: to the client the same as a lost
        reply, but the server never saw (the last piece of) the request."""
        return self._add(Loss(predicate, "request", times, self))

    def hold_reply_when(self, predicate: Predicate) -> Loss:
        """Pass the next request that matches on, and be silent from then: its reply arrives at `restore`, late."""
        return self._add(Loss(predicate, "silence", 1, self))

    def hold_request_when(self, predicate: Predicate) -> Loss:
        """Hold the next request that matches, and be silent from then: at `restore` it goes on to the server, late."""
        return self._add(Loss(predicate, "hold", 1, self))

    def stall_connection_when(self, predicate: Predicate, *, cut_when: Predicate | None = None) -> Loss:
        """Hold the next request that matches, and all that its connection sends after it, also when the client
        closes it. Other connections pass, so what they send later arrives earlier. `Loss.deliver` or `restore`
        passes on what was held.

        As soon as what is held matches `cut_when`, the client's end is broken off, so nothing comes behind it.
        """
        return self._add(Loss(predicate, "stall", 1, self, cut_when))

    def drip(self, *, requests: float = 0.0, replies: float = 0.0) -> None:
        """Pass one byte at a time, with so many seconds after each, of requests, of replies or of both: each `recv`
        returns in time, and the whole may not. Until `restore`, or until this is called again without seconds."""

        def drip() -> None:
            self._drips.requests, self._drips.replies = requests, replies

        self._do(drip)

    def silence(self) -> None:
        """Accept connections and bytes but pass nothing on, either way; at `restore` they arrive, late."""
        self._do(self._flowing.clear)

    def refuse(self) -> None:
        """Break off all connections, and every new one at once, until `restore`."""

        def refuse() -> None:
            self._refusing = True
            self._abort_all()

        self._do(refuse)

    def cut(self) -> None:
        """Break off all connections there are; new ones are served."""
        self._do(self._abort_all)

    def restore(self) -> None:
        """Everything passes again; losses that have not happened yet are called off."""

        def restore() -> None:
            for loss in self._losses:
                loss._released.set()
            self._losses.clear()
            self._drips.requests = self._drips.replies = 0.0
            self._refusing = False
            self._flowing.set()

        self._do(restore)

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    def close(self) -> None:
        """Break off everything and end the thread. Raises what a predicate raised."""
        if self._loop.is_closed():
            return
        try:
            self._call(self._shut())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CONTROL_TIMEOUT)
            if not self._thread.is_alive():
                self._loop.close()
        if self._errors:
            raise self._errors[0]

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, loss: Loss) -> Loss:
        self._do(lambda: self._losses.append(loss))
        return loss

    def _do(self, action: Callable[[], None]) -> None:
        async def act() -> None:
            action()

        self._call(act())

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CONTROL_TIMEOUT)

    # Work: in the loop's thread only

    def _abort_all(self) -> None:
        for task, writers in self._connections.items():
            task.cancel()
            for writer in writers:
                writer.transport.abort()

    async def _shut(self) -> None:
        self._refusing = True
        for listener in self._server.sockets:
            self._loop.remove_reader(listener.fileno())
        # The server itself is closed last: a connection that it has accepted just now could not be closed after that.
        self._abort_all()
        ends_at = self._loop.time() + _CONTROL_TIMEOUT / 2
        for _ in range(3):  # a connection that was accepted just now has several steps before its task
            await asyncio.sleep(0)
            while (left := asyncio.all_tasks() - {asyncio.current_task()}) and self._loop.time() < ends_at:
                await asyncio.wait(left, timeout=_CONTROL_TIMEOUT / 10)
        for _ in range(10):  # what was aborted last is closed in a later turn of the loop
            await asyncio.sleep(0)
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._refusing:
            writer.transport.abort()
            return
        writers = self._connections[task] = [writer]
        try:
            await self._flowing.wait()
            server_reader, server_writer = await self._connect()
            writers.append(server_writer)
            connection = _Connection(self._losses, self._drips, self._flowing)
            pumps = [
                asyncio.ensure_future(connection.forward(reader, writer, server_writer)),
                asyncio.ensure_future(connection.back(server_reader, writer)),
            ]
            try:
                done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                connection.end()
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
            for pump in done:
                pump.result()
            for each in () if connection.lost else writers:
                each.close()  # what was written still goes out
                await asyncio.wait_for(each.wait_closed(), _CONTROL_TIMEOUT)
        except (TimeoutError, OSError):
            pass  # either side has gone; the other side learns it below
        except asyncio.CancelledError:
            pass  # broken off by `_abort_all`
        except Exception as error:  # noqa: BLE001 - whatever a predicate raises: `close` re-raises it
            self._errors.append(error)
        finally:
            for each in writers:
                each.transport.abort()
            del self._connections[task]

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ends_at = self._loop.time() + self._patience
        while True:
            try:
                return await asyncio.open_connection(*self._target)
            except ConnectionRefusedError:
                if self._loop.time() >= ends_at:
                    raise
            await asyncio.sleep(0.01)


class _Connection:
    """One connection's two directions. Either ends when its peer closes, or by a loss."""

    def __init__(self, losses: list[Loss], drips: _Drips, flowing: asyncio.Event) -> None:
        self._losses = losses
        self._drips = drips
        self._flowing = flowing
        self._request = b""
        self._armed: Loss | None = None
        self._stalled: Loss | None = None
        self.lost = False

    async def forward(
        self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        while chunk := await self._read(client):
            await self._flowing.wait()
            self._request += chunk
            loss = next((loss for loss in self._losses if loss._matches(self._request)), None)
            if loss is not None and self._armed is None:
                loss._times -= 1
                if loss._what == "silence":
                    self._flowing.clear()
                    loss._fire()
                elif loss._what == "hold":
                    self._flowing.clear()
                    loss._fire()
                    await self._flowing.wait()
                elif loss._what == "stall":
                    self._stalled = loss
                    loss._fire()
                    chunk = await self._hold(loss, chunk, client, to_client)
                elif loss._what == "request":
                    self._lose(loss)
                    return
                else:
                    self._armed = loss
            await _pass_on(chunk, server, lambda: self._drips.requests)
            if self._stalled is not None and self._stalled._delivering:
                break
        if self._stalled is not None:
            server.write_eof()
            await asyncio.Event().wait()  # the server works off what was held: its end ends this
        if self._armed is not None:
            await asyncio.Event().wait()  # the client gave up; the reply it is not to get still ends this

    async def _read(self, client: asyncio.StreamReader) -> bytes:
        try:
            return await client.read(_CHUNK)
        except OSError:
            if self._stalled is None:
                raise
            return b""  # the client reset its end, and what it sent before still goes on

    async def _hold(
        self, loss: Loss, chunk: bytes, client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> bytes:
        """Return what the client sends until the release. It is read at once: a reset by the client would drop it."""
        held = bytearray(chunk)

        async def collect() -> None:
            while True:
                if loss._cut_when is not None and loss._cut_when(bytes(held)):
                    to_client.transport.abort()
                if not (more := await self._read(client)):
                    return
                held.extend(more)

        collecting = asyncio.ensure_future(collect())
        try:
            await loss._released.wait()
        finally:
            collecting.cancel()
            await asyncio.wait([collecting])
        if not collecting.cancelled():
            collecting.result()
        return bytes(held)

    async def back(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        is_gone = False
        while chunk := await server.read(_CHUNK):
            await self._flowing.wait()
            self._request = b""
            if self._armed is not None:
                self._lose(self._armed)
                return
            try:
                if not is_gone:
                    await _pass_on(chunk, client, lambda: self._drips.replies)
            except OSError:
                if self._stalled is None:
                    raise
                is_gone = True  # the client went on long ago, and the server still works off what was held

    def end(self) -> None:
        if self._stalled is not None:
            self._stalled._ended.set()

    def _lose(self, loss: Loss) -> None:
        self.lost = True
        loss._fire()


async def _pass_on(chunk: bytes, to: asyncio.StreamWriter, pause: Callable[[], float]) -> None:
    while chunk and (seconds := pause()):
        to.write(chunk[:1])
        await to.drain()
        chunk = chunk[1:]
        await asyncio.sleep(seconds)
    if chunk:
        to.write(chunk)
        await to.drain()
