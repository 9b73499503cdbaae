"""Servers on the loopback that keep what they are told: a webhook and a mail relay."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Webhook:
    """An HTTP server; answers with the codes it was given, then with 200."""

    url: str = ""
    codes: list[int] = field(default_factory=list)
    hang: threading.Event | None = None  # answers only once this is set
    got: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # path, JSON


@contextmanager
def webhook(*codes: int, hang: threading.Event | None = None) -> Iterator[Webhook]:
    """A webhook on a free port."""
    one = Webhook(codes=list(codes), hang=hang)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if one.hang is not None:
                one.hang.wait(60)
            code = one.codes.pop(0) if one.codes else 200
            if code == 200:
                one.got.append((self.path, json.loads(body)))
            self.send_response(code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    one.url = f"http://127.0.0.1:{server.server_address[1]}/hooks/T0P-SECRET"
    yield from _serving(server, one)


@contextmanager
def mail_relay() -> Iterator[tuple[str, list[str]]]:
    """(host:port, messages) of an SMTP server that takes everything."""
    got: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline():
                word = line.split()[0].upper() if line.split() else b""
                if word == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    lines = list(iter(self.rfile.readline, b".\r\n"))
                    got.append(b"".join(lines).decode())
                self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
                if word == b"QUIT":
                    return

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    yield from _serving(server, (f"127.0.0.1:{server.server_address[1]}", got))


def _serving(server: socketserver.BaseServer, value: Any) -> Iterator[Any]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield value
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
