"""A proxy in front of an S3 server that answers 503 to some or all requests, as a store under load does."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class FailingProxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, target_port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target_port = target_port
        self.share = 0.0
        """The share of requests that are refused."""
        self.refused_count = self.passed_count = 0
        self.rng = Random(1)

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FailingProxy

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.server.rng.random() < self.server.share:
            self.server.refused_count += 1
            self._send(503, [("content-type", "application/xml")], SLOW_DOWN)
            return
        self.server.passed_count += 1
        target = http.client.HTTPConnection("127.0.0.1", self.server.target_port, timeout=30)
        try:
            target.request(self.command, self.path, body, dict(self.headers.items()))
            answer = target.getresponse()
            content = answer.read()
            dropped = ("transfer-encoding", "connection", "content-length")
            fields = [(name, text) for name, text in answer.getheaders() if name.lower() not in dropped]
            length = answer.getheader("content-length")
            self._send(answer.status, fields, content, length if self.command == "HEAD" else None)
        finally:
            target.close()

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve  # noqa: N815  # named by the base class

    def _send(
        self, status: int, fields: list[tuple[str, str]], content: bytes, length: str | None = None
    ) -> None:
        self.send_response(status)
        for name, text in fields:
            self.send_header(name, text)
        self.send_header("content-length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *about: Any) -> None:
        pass


@contextmanager
def failing_proxy(target_port: int) -> Iterator[FailingProxy]:
    proxy = FailingProxy(target_port)
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
