"""A provider on loopback: tells one neutral story in any of the three wire formats, checks what it is asked as the real
ones do, and fails as it is told to.

    with LlmServer(story, format="anthropic", faults={1: Fault("reset")}) as server:
        model = AnthropicModel(ModelOptions("claude-opus-5-5", api_key=server.key, base_url=server.url))
"""

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, Self

from kerneltune.tools.schema.codec import Json
from tests.agent.models.story import Fault, Refused, Said, said, spoilt, sse
from tests.agent.models.wire_anthropic import Messages
from tests.agent.models.wire_chat import Chat
from tests.agent.models.wire_responses import Responses

Format = Literal["anthropic", "openai", "chat"]
Faults = Mapping[int, Fault] | Callable[[int], Fault | None]
KEY = "sk-test-0123456789abcdef"
OVER = Said(text="The story is over.")
_KINDS = {400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error"}
_KINDS |= {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error"}


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Json]


class LlmServer:
    """story: lines of a script. faults: by the number of the request for a reply, from 0, in the order of arrival.

    `asked` holds the requests for replies. A line that a fault spoilt is told again with the next request.
    """

    def __init__(
        self,
        story: Sequence[dict[str, Json]],
        format: Format,
        *,
        faults: Faults | None = None,
        quirks: frozenset[str] = frozenset(),
        key: str = KEY,
        port: int = 0,
    ) -> None:
        self.story, self.key, self.format, self._quirks = story, key, format, quirks
        faults = faults if faults is not None else {}
        self._fault_at = faults if callable(faults) else faults.get
        wires: dict[str, Callable[[], Messages | Responses | Chat]] = {"anthropic": Messages, "openai": Responses}
        self.wire = wires.get(format, lambda: Chat(quirks))()
        self.asked: list[Asked] = []
        self.refused: list[str] = []  # why requests were not as they should be
        self.page: bytes | None = None  # what answers instead of a list of models
        self.hung_up = threading.Event()  # a client left in mid-stream
        self.streaming = threading.Event()
        self.at_exit = contextlib.ExitStack()  # models that speak to it are closed with it
        self._told = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """The base URL for the SDK of this format."""
        root = f"http://127.0.0.1:{self._http.server_address[1]}"
        return root if self.format == "anthropic" else f"{root}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.at_exit.close()
        self._stop.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 60

            def log_message(self, format: str, *args: object) -> None:
                """Tests are quiet."""

            def do_GET(self) -> None:
                server.list_models(self)

            def do_POST(self) -> None:
                server.answer(self)

        return Handler

    def list_models(self, http: BaseHTTPRequestHandler) -> None:
        """GET /v1/models and /v1/models/<id>."""
        if self.page is not None:
            self._reply(http, 200, self.page, {"content-type": "text/html"})
            return
        name = http.path.partition("?")[0].removeprefix("/v1/models").lstrip("/")
        try:
            self._check_key(http)
            self._send(http, 200, self.wire.model(name) if name else self.wire.models())
        except Refused as refused:
            self._send(http, refused.status, self.wire.error(refused.status, refused.kind, str(refused)))

    def _check_key(self, http: BaseHTTPRequestHandler) -> None:
        given = http.headers.get("x-api-key") or (http.headers.get("authorization") or "").removeprefix("Bearer ")
        if given != self.key:
            raise Refused(f"Incorrect API key provided: {given}. Find yours in the console.", 401, _KINDS[401])

    def answer(self, http: BaseHTTPRequestHandler) -> None:
        """POST: one reply of the story, or what goes wrong instead."""
        body = json.loads(http.rfile.read(int(http.headers["content-length"])))
        headers = {name.lower(): value for name, value in http.headers.items()}
        with self._lock:
            number = len(self.asked)
            self.asked.append(Asked(http.path, headers, body))
        fault = self._fault_at(number)
        try:
            self._check_key(http)
            if http.path != self.wire.path:
                raise Refused("Not Found", 404, _KINDS[404])
            self.wire.check(body, headers)
        except Refused as refused:
            self.refused.append(str(refused))
            if "mute" in self._quirks and body.get("stream"):
                self._reply(http, 200, b"", {"content-type": "text/event-stream"})
                return
            self._send(http, refused.status, self.wire.error(refused.status, refused.kind, str(refused)))
            return
        if fault is not None and fault.kind in ("status", "html"):
            self._fail(http, fault)
            return
        if fault is not None and fault.kind == "silence":
            self._pause_or_leave(http, fault)
            return
        self._stream(http, body, number, fault)

    def _pause_or_leave(self, http: BaseHTTPRequestHandler, fault: Fault) -> None:
        self.streaming.set()
        http.close_connection = True
        with contextlib.suppress(OSError):
            self._pause(http, fault.pause_s)

    def _fail(self, http: BaseHTTPRequestHandler, fault: Fault) -> None:
        if fault.kind == "html":
            self._reply(http, 200, b"<html><title>Please log in</title></html>", {"content-type": "text/html"})
            return
        headers = {"retry-after": fault.retry_after} if fault.retry_after is not None else {}
        kind = _KINDS.get(fault.status, "api_error")
        error = self.wire.error(
            fault.status, kind, fault.message or f"told to say {fault.status}", fault.code, fault.param
        )
        self._send(http, fault.status, error, headers)

    def _line(self, number: int, fault: Fault | None) -> Said:
        with self._lock:
            told = said(self.story[self._told], number) if self._told < len(self.story) else OVER
            if fault is None or not fault.keeps_story:
                self._told += 1
        return spoilt(told, fault)

    def _stream(self, http: BaseHTTPRequestHandler, body: dict[str, Json], number: int, fault: Fault | None) -> None:
        counted = self.wire.count(body)
        if fault is not None and fault.kind == "bad_usage":
            counted = replace(counted, total=-counted.total * 10**30)
        events = list(self.wire.tell(self._line(number, fault), counted, body))
        http.send_response(200)
        http.send_header("content-type", "text/event-stream; charset=utf-8")
        http.send_header("connection", "close")
        http.end_headers()
        http.close_connection = True
        try:
            self._send_events(http, events, fault)
        except OSError:
            self.hung_up.set()

    def _send_events(self, http: BaseHTTPRequestHandler, events: list[bytes], fault: Fault | None) -> None:
        kind, half = fault.kind if fault else "", len(events) // 2
        if fault is not None and kind in ("comments", "flood", "line"):
            self._send_endlessly(http, events, fault)
        for i, event in enumerate(events):
            if i == half and kind == "reset":
                time.sleep(0.05)  # what was sent should be read: a reset throws it away
                http.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                http.rfile.close()  # it holds the socket open
                http.connection.close()
                return
            if i == half and kind == "truncated":
                http.wfile.write(event[: len(event) // 2])
                return
            if i == half and kind == "nonsense":
                kinds = {"anthropic": "content_block_delta", "openai": "response.failed"}
                event = sse({"type": kinds.get(self.format), "choices": [7]}, kinds.get(self.format))
            if i == half and kind == "ended":
                return
            if i == half and kind == "error_event":
                http.wfile.write(self.wire.error_event("overloaded_error", "Overloaded"))
                return
            http.wfile.write(event)
            http.wfile.flush()
            self.streaming.set()
            if fault is not None and (kind == "drip" or (i == half and kind == "stall")):
                self._pause(http, fault.pause_s)

    def _send_endlessly(self, http: BaseHTTPRequestHandler, events: list[bytes], fault: Fault) -> None:
        http.wfile.write(b"".join(events[:half]) if (half := len(events) // 2) else b"")
        again = {"comments": b": still there\n\n", "line": b"x" * 65536, "flood": events[half] * 100}[fault.kind]
        http.wfile.write(b"data: " if fault.kind == "line" else b"")
        while not self._stop.is_set():
            http.wfile.write(again)
            http.wfile.flush()
            if fault.kind == "comments":
                self._pause(http, fault.pause_s)

    def _pause(self, http: BaseHTTPRequestHandler, pause_s: float) -> None:
        """Wait, but notice a client that leaves."""
        http.connection.settimeout(pause_s)
        try:
            if http.connection.recv(1) == b"":
                raise ConnectionResetError
        except TimeoutError:
            pass

    def _send(self, http: BaseHTTPRequestHandler, status: int, value: Json, headers: Mapping[str, str] = {}) -> None:
        self._reply(http, status, json.dumps(value).encode(), {"content-type": "application/json"} | dict(headers))

    def _reply(self, http: BaseHTTPRequestHandler, status: int, data: bytes, headers: Mapping[str, str]) -> None:
        http.send_response(status)
        for name, value in {**headers, "content-length": str(len(data))}.items():
            http.send_header(name, value)
        http.end_headers()
        http.wfile.write(data)
