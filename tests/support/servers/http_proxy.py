"""An HTTP proxy in front of an object store that misbehaves as it is told to, request by request."""

import http.client
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import urlsplit

from tests.support.servers.http_rules import CONDITIONS, Exchange, Hold, Predicate, Reply, Request, Rule

_TIMEOUT = 30.0
_CONTROL_TIMEOUT = 30.0
_OF_THE_CONNECTION = ("connection", "keep-alive", "transfer-encoding")

Form = Literal["quoted", "unquoted"]


class HttpProxy:
    """Passes requests on to a server, each as a whole. Works in threads of its own; a context manager.

    A rule is for the requests that its predicate says, `times` of them (None: all); the oldest rule that takes a
    request has it alone. What a method asks for holds when it returns.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self._target = (target_host, target_port)
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._stripped: frozenset[str] = frozenset()
        self._etags: tuple[Form, Form] | None = None
        self._errors: list[BaseException] = []
        self._sockets: set[socket.socket] = set()
        self._workers: set[threading.Thread] = set()
        self._closed = False
        self._server = _Server(self)
        self.host, self.port = self._server.server_address[:2]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="http proxy", daemon=True)
        self._thread.start()

    def url(self, url: str) -> str:
        """The same URL, through this proxy."""
        return urlsplit(url)._replace(netloc=f"{self.host!s}:{self.port}").geturl()

    # Control: from any thread

    def drop_reply_when(self, predicate: Predicate, *, times: int | None = 1) -> Rule:
        """Pass the request on, await the server's reply, and close the connection instead of passing it back."""

        def act(rule: Rule, exchange: Exchange) -> None:
            exchange.forward()
            rule.fire()
            exchange.cut()

        return self._add(Rule(predicate, act, times))

    def drop_request_when(self, predicate: Predicate, *, times: int | None = 1) -> Rule:
        """Close the connection instead of passing the request on."""

        def act(rule: Rule, exchange: Exchange) -> None:
            rule.fire()
            exchange.cut()

        return self._add(Rule(predicate, act, times))

    def answer_when(
        self, predicate: Predicate, status: int, *, carried_out: bool = False, times: int | None = 1
    ) -> Rule:
        """Answer `status`. `carried_out`: after the request was passed on and answered by the server, whose reply is
        thrown away: a 412 then is what a client gets that repeats a put by itself, its first reply having been lost.
        """

        def act(rule: Rule, exchange: Exchange) -> None:
            if carried_out:
                exchange.forward()
            rule.fire()
            code = HTTPStatus(status).phrase.replace(" ", "")
            body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code></Error>"
            exchange.reply(Reply(status, [("Content-Type", "application/xml")], body.encode()))

        return self._add(Rule(predicate, act, times))

    def hold_when(self, predicate: Predicate, *, times: int | None = 1) -> Hold:
        """Keep the request until it is released: to the client that gives up, it arrives late."""
        hold = Hold(predicate, times)
        self._add(hold)
        return hold

    def strip(self, *names: str) -> None:
        """From now on, pass requests on without these headers (none: all of CONDITIONS): the store ignores them."""
        self._stripped = frozenset(name.lower() for name in names or CONDITIONS)

    def etags(self, *, replies: Form, demanded: Form) -> None:
        """From now on, ETags in replies have this form, and an If-Match that has not that one matches nothing."""
        self._etags = (replies, demanded)

    def restore(self) -> None:
        """Everything passes again; what is held is released."""
        with self._lock:
            rules, self._rules = self._rules, []
            self._stripped, self._etags = frozenset(), None
        for rule in rules:
            if isinstance(rule, Hold):
                rule.release()

    def close(self) -> None:
        """Break off everything, drop what is held, end the threads. Raises what a predicate raised."""
        if self._closed:
            return
        with self._lock:
            self._closed = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_CONTROL_TIMEOUT)
        with self._lock:
            sockets, workers = list(self._sockets), list(self._workers)
        for each in sockets:
            _break_off(each)
        self.restore()
        for worker in workers:
            worker.join(_CONTROL_TIMEOUT)
        if self._errors:
            raise self._errors[0]

    def __enter__(self) -> "HttpProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    # Work: in the threads of the connections

    def _handle(self, exchange: Exchange) -> None:
        with self._lock:
            rule = next((rule for rule in self._rules if rule.takes(exchange.request)), None)
        if rule is None:
            exchange.reply(exchange.forward())
        else:
            rule.act(rule, exchange)

    def _forward(self, request: Request, headers: list[tuple[str, str]]) -> Reply:
        """Carry a request out at the server, over a connection of its own."""
        if self._closed:
            raise ConnectionAbortedError("held until the proxy was closed")
        etags = self._etags
        if etags and "if-match" in request.headers:
            sent = request.headers["if-match"]
            if sent != "*" and sent != _in_form(sent, etags[1]):
                return Reply(412, [], b"")
            headers = [
                (name, _in_form(value, "quoted") if name.lower() == "if-match" else value) for name, value in headers
            ]
        upstream = http.client.HTTPConnection(*self._target, timeout=_TIMEOUT)
        try:
            upstream.connect()
            with self._lock:
                self._sockets.add(upstream.sock)
            upstream.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:
                if name.lower() not in (*_OF_THE_CONNECTION, *self._stripped):
                    upstream.putheader(name, value)
            upstream.putheader("Connection", "close")
            upstream.endheaders(request.body)
            answer = upstream.getresponse()
            received = [item for item in answer.getheaders() if item[0].lower() not in _OF_THE_CONNECTION]
            if etags:
                received = [
                    (name, _in_form(value, etags[0]) if name.lower() == "etag" else value) for name, value in received
                ]
            return Reply(answer.status, received, answer.read())
        finally:
            with self._lock:
                self._sockets.discard(upstream.sock)
            upstream.close()


class _Exchange:
    """One request and what becomes of it."""

    def __init__(self, handler: "_Handler", request: Request) -> None:
        self._handler = handler
        self.request = request

    def forward(self) -> Reply:
        return self._handler.proxy._forward(self.request, list(self._handler.headers.items()))

    def reply(self, reply: Reply) -> None:
        handler = self._handler
        handler.send_response_only(reply.status)
        length = None
        for name, value in reply.headers:
            if name.lower() == "content-length":
                length = value  # of a HEAD: without a body
            else:
                handler.send_header(name, value)
        if reply.status not in (204, 304):
            handler.send_header("Content-Length", length if length and not reply.body else str(len(reply.body)))
        handler.end_headers()
        if self.request.method != "HEAD":
            handler.wfile.write(reply.body)
        handler.wfile.flush()

    def cut(self) -> None:
        self._handler.close_connection = True
        _break_off(self._handler.connection)


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def __init__(self, proxy: HttpProxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, *_: Any) -> None:
        pass  # either side has gone; what else there is was kept by the handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body in one piece
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.proxy = self.server.proxy
        with self.proxy._lock:
            self.proxy._sockets.add(self.connection)
            self.proxy._workers.add(threading.current_thread())
            if self.proxy._closed:
                _break_off(self.connection)

    def finish(self) -> None:
        with self.proxy._lock:
            self.proxy._sockets.discard(self.connection)
            self.proxy._workers.discard(threading.current_thread())
        super().finish()

    def log_message(self, *_: object) -> None:
        pass

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            self.proxy._handle(_Exchange(self, Request(self.command, self.path, headers, body)))
        except (OSError, http.client.HTTPException):
            self.close_connection = True  # the server broke off, or the client has gone
        except Exception as error:  # noqa: BLE001 - whatever a predicate raises: `close` re-raises it
            self.proxy._errors.append(error)
            self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - what the base class calls


def _in_form(etag: str, form: Form) -> str:
    bare = etag.strip('"')
    return f'"{bare}"' if form == "quoted" else bare


def _break_off(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has gone already
