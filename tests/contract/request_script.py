"""What a client asks of every route, one request after the other: well-formed, refused and malformed.

Promises: the topics take turns, so that two requests in a row are hardly ever for the same shard, or each has
all of its own in a row, so that a connection has a reason to go where its topic is. A script leaves no topic
behind and can be played again on the same server.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from tests.harness.clients.raw_client import body_bytes, request_bytes

# With two shards and with five, each of them owns some.
TOPICS = ("alpha", "beta", "gamma.1", "delta:x", "epsilon-2", "zeta", "eta", "theta_3", "iota", "kappa")
FULL = "full"
LARGE = b'{"records":[{"data":"%b","tag":"large"}]}' % (b"l" * 300_000)
MANY = b'{"records":[%b]}' % b",".join([b'{"data":%d,"tag":"t.%d"}' % (n, n % 7) for n in range(1500)])


class ScriptRequest(NamedTuple):
    """`method` says how the answer is read; no request follows one that ends its connection."""

    label: str
    method: str
    wire: bytes


def script(topics: tuple[str, ...] = TOPICS, *, in_turns: bool = True) -> list[ScriptRequest]:
    by_topic = [list(_about(name)) for name in topics]
    order = zip_longest(*by_topic) if in_turns else by_topic
    turns = [request for some in order for request in some if request is not None]
    control = list(_control())
    # Requests about no topic are spread between the others.
    step = len(turns) // (len(control) + 1)
    for number, request in enumerate(control):
        turns.insert((number + 1) * step + number, request)
    return [*turns, *_full(), *(_ask(name, "DELETE") for name in (*topics, FULL))]


def _ask(name: str, method: str, rest: str = "", body: object = None, *fields: str) -> ScriptRequest:
    target = f"/v0/topics/{name}{rest}"
    sent = body_bytes(body)
    label = f"{method} {target} {sent!r:.80} {fields}"
    return ScriptRequest(label, method, request_bytes(method, target, sent, *fields))


def _raw(label: str, line: str, *fields: str, body: bytes = b"") -> ScriptRequest:
    wire = "\r\n".join([line, *fields, "", ""]).encode("latin-1") + body
    return ScriptRequest(label, line.partition(" ")[0], wire)


def _about(name: str) -> Iterator[ScriptRequest]:
    yield from _absent(name)
    yield from _appends(name)
    yield from _reads(name)
    yield from _refused(name)
    yield from _deletes(name)


def _absent(name: str) -> Iterator[ScriptRequest]:
    yield _ask(name, "GET")
    yield _ask(name, "HEAD")
    yield _ask(name, "DELETE")
    yield _ask(name, "POST", "/diff", {})
    yield _ask(name, "POST", "/delete", {"before_seq": 3})
    yield _ask(name, "POST", "", {"records": [{"data": 1}], "create": False})
    yield _ask(name, "PUT", "", {"type": "barrel"})
    yield _ask(name, "PUT", "", {"durability": "fsync", "priority": 4000, "idempotency_window_ms": 60_000})
    yield _ask(name, "PUT", "", {"cap_records": 5000})
    yield _ask(name, "PUT", "", {"durability": "ephemeral"})
    yield _ask(name, "PUT", "", {"type": "queue"})


def _appends(name: str) -> Iterator[ScriptRequest]:
    record = b'{"data":{"b":1e400,"a":18446744073709551616,"a":2},"tag":"t.1","node":"n","meta":{"k":1.0}}'
    yield _ask(name, "POST", "", b'{"records":[%b]}' % record)
    yield _ask(name, "POST", "?return_seqs=false", '{"records":[{"data":"é\\u0000","tag":"Ω"}]}'.encode())
    yield _ask(name, "POST", "", {"records": [{"data": None}, {"data": []}], "node": "m"})
    keyed = {"records": [{"data": 1}], "idempotency_key": "key"}
    yield _ask(name, "POST", "", keyed)
    yield _ask(name, "POST", "", keyed)
    yield _ask(name, "POST", "", {**keyed, "records": [{"data": 2}]})
    yield _ask(name, "POST", "", {"records": [{"data": 1}]}, "idempotency-key: key")
    yield _ask(name, "POST", "", {"records": [{"data": 1}]}, "idempotency-key: of the head")
    yield _ask(
        name, "POST", "", gzip.compress(b'{"records":[{"data":"packed"}]}', mtime=0), "content-encoding: gzip"
    )
    chunked = request_bytes("POST", f"/v0/topics/{name}", b'{"records":[{"data":"c"}]}', is_chunked=True)
    yield ScriptRequest(f"{name}: in chunks", "POST", chunked)
    yield _ask(name, "POST", "", LARGE)
    yield _ask(name, "POST", "", MANY)


def _reads(name: str) -> Iterator[ScriptRequest]:
    yield _ask(name, "GET")
    yield _ask(name, "GET", "?touch=false")
    yield _ask(name, "GET", "?touch=perhaps")
    yield _ask(name, "HEAD")
    yield _ask(name, "POST", "/diff", {})
    yield _ask(name, "POST", "/diff", {"limit": 3, "include_tags": True}, "accept-encoding: gzip")
    yield _ask(name, "POST", "/diff", {"limit": 2000, "include_tags": True}, "accept-encoding: gzip")
    yield _ask(name, "POST", "/diff", {"from_seq": 2, "limit": 1, "include_meta": False})
    yield _ask(name, "POST", "/diff", {"node": ["n", "m"], "limit": 5})
    yield _ask(name, "POST", "/diff", {"from_seq": 1_000_000, "limit": 2})
    yield _ask(name, "POST", "/diff", {"epoch": 999_999_999, "limit": 2})
    yield _ask(name, "POST", "/diff", {"from_seq": 1510, "wait_ms": 20})
    yield _ask(name, "POST", "/diff", {"from_seq": -1})
    yield _ask(name, "POST", "/diff", {"limit": "many"})
    yield _raw(f"{name}: HTTP/1.0", f"GET /v0/topics/{name} HTTP/1.0", "connection: keep-alive")


def _refused(name: str) -> Iterator[ScriptRequest]:
    yield _ask(name, "POST", "", b"")
    yield _ask(name, "POST", "", b'{"records":[{"data":1}')
    yield _ask(name, "POST", "", b'{"records":[{"data":NaN}]}')
    yield _ask(name, "POST", "", b'{"records":[{"data":"\xff"}]}')
    yield _ask(name, "POST", "", b'{"records":[{"data":%b1%b}]}' % (b"[" * 200, b"]" * 200))
    yield _ask(name, "POST", "", {"records": []})
    yield _ask(name, "POST", "", {"records": [{"tag": "no data"}]})
    yield _ask(name, "POST", "", {"records": [{"data": 1, "tag": "t" * 300}]})
    yield _ask(name, "POST", "", {"records": [{"data": 1, "meta": []}]})
    yield _ask(name, "POST", "", {"records": [{"data": "x" * (1 << 20)}]})
    yield _ask(name, "POST", "", b'{"records":[%b]}' % b",".join([b'{"data":0}'] * 10_001))
    yield _ask(name, "POST", "?return_seqs=2", {"records": [{"data": 1}]})
    yield _ask(name, "POST", "/claim", {"node": "n"})
    yield _ask(name, "POST", "/ack", {"node": "n", "seqs": [1]})
    yield _ask(name, "POST", "/nack", {})
    yield _ask(name, "POST", "/extend", {})
    yield _ask(name, "GET", "/work?node=n")
    yield _ask(name, "POST", "/nothing", {})
    yield _ask(name, "GET", "/diff")
    yield _ask(name, "PATCH", "", {})
    yield _ask(name, "GET", "/")
    yield _ask(f"-{name}", "POST", "", {"records": [{"data": 1}]})
    yield _ask(f"{name}%2Fx", "GET")
    yield _ask(f"{name}%00", "GET")
    yield _ask(f"%ff{name}", "GET")
    target = f"/v0/topics/{name}"
    text = request_bytes("POST", target, b'{"records":[{"data":1}]}', content_type="text/plain")
    yield ScriptRequest(f"{name}: as text", "POST", text)
    untyped = request_bytes("POST", f"{target}/diff", b"{}", content_type=None)
    yield ScriptRequest(f"{name}: as nothing", "POST", untyped)
    yield _raw(f"{name}: too large", f"POST {target} HTTP/1.1", "host: a", "content-length: 99999999999")
    both = ("host: a", "content-length: 5", "transfer-encoding: chunked")
    yield _raw(f"{name}: two framings", f"POST {target} HTTP/1.1", *both, body=b"0\r\n\r\n")
    yield _raw(f"{name}: no host", f"GET {target} HTTP/1.1")
    yield _raw(f"{name}: unknown version", f"GET {target} HTTP/2.0", "host: a")
    yield _raw(f"{name}: unknown method", f"BREW {target} HTTP/1.1", "host: a")
    yield _raw(f"{name}: large head", f"GET {target} HTTP/1.1", "host: a", f"x: {'y' * 40_000}")
    yield _raw(f"{name}: long line", f"GET {target}?{'q' * 9000} HTTP/1.1", "host: a")
    yield _ask(name, "GET", "", None, "connection: close")


def _deletes(name: str) -> Iterator[ScriptRequest]:
    yield _ask(name, "POST", "/delete", {"match": ["tag", "Eq", "t.1"]})
    yield _ask(name, "POST", "/delete", {"match": ["tag", "Glob", "t.2*"], "before_seq": 700})
    yield _ask(name, "POST", "/delete", {"match": "large"})
    yield _ask(name, "POST", "/delete", {"match": ["tag", "Like", "t"]})
    yield _ask(name, "POST", "/delete", {})
    yield _ask(name, "POST", "/diff", {"limit": 20, "include_tags": True})
    yield _ask(name, "POST", "/delete", {"before_seq": 900})
    yield _ask(name, "GET")
    yield _ask(name, "PUT", "", {"cap_records": 50})
    yield _ask(name, "POST", "", {"records": [{"data": 1}]})
    yield _ask(name, "POST", "/diff", {"limit": 4})
    yield _ask(name, "DELETE", "?if_empty=true")
    yield _ask(name, "DELETE", "?if_empty=maybe")
    yield _ask(name, "DELETE")
    yield _ask(name, "POST", "/diff", {"from_seq": 4})
    yield _ask(name, "POST", "", {"records": [{"data": "again"}], "config": {"durability": "memory"}})
    yield _ask(name, "POST", "/diff", {"from_seq": 4})


def _full() -> Iterator[ScriptRequest]:
    """A topic that takes no more."""
    yield _ask(FULL, "PUT", "", {"discard": "reject", "cap_records": 2, "cap_bytes": 1000})
    yield _ask(FULL, "POST", "", {"records": [{"data": 1}, {"data": 2}]})
    # An append that shares the batch of an earlier one gets the head as readers see it, without both.
    yield _ask(FULL, "GET")
    yield _ask(FULL, "POST", "", {"records": [{"data": 3}]})
    yield _ask(FULL, "POST", "", {"records": [{"data": "x" * 2000}]})


def _control() -> Iterator[ScriptRequest]:
    """What one process answers for all; of a list only what no request before it changes."""
    for method, target, body in (
        ("GET", "/v0/health", None),
        ("HEAD", "/healthz", None),
        ("POST", "/v0/health", b"{}"),
        ("GET", "/v0/topics?prefix=missing", None),
        ("GET", "/v0/topics?page_size=few", None),
        ("GET", "/v0/topics?cursor=%21", None),
        ("GET", "/v0/topics?partial=perhaps", None),
        ("DELETE", "/v0/topics", None),
        ("GET", "/v0/routers", None),
        ("GET", "/v0/routers/a%3Er", None),
        ("PUT", "/v0/routers/a%3Er", b'{"source":"a.from","dest":"a.into"}'),
        ("PUT", "/v0/routers/a%3Er", b'{"source":"a.from","dest":"a.into","filter":"t"}'),
        ("PUT", "/v0/routers/r", b'{"source":"a.into","dest":"a.from"}'),
        ("PUT", "/v0/routers/r", b'{"source":"missing","dest":"a.into"}'),
        ("PUT", "/v0/routers/r", b'{"source":"missing","dest":"missing-too","create_dest":false}'),
        ("PUT", "/v0/routers/r", b'{"source":"a.from","dest":"a.from"}'),
        ("PUT", "/v0/routers/r", b'{"source":"a.from"}'),
        ("GET", "/v0/routers/a%3Er", None),
        ("HEAD", "/v0/routers/a%3Er", None),
        ("GET", "/v0/routers?source=a.from", None),
        ("GET", "/v0/routers?source=%20", None),
        ("POST", "/v0/routers/a%3Er", b"{}"),
        ("DELETE", "/v0/routers/r", None),
        ("DELETE", "/v0/topics/a.into", None),
        ("DELETE", "/v0/topics/a.from", None),
        ("DELETE", "/v0/routers/a%3Er", None),
        ("POST", "/v0/watch", b'{"topics":{"a":{}}}'),
        ("POST", "/v0/watch?lenient=1", b'{"topics":{"a":{},"missing":{"tail":true}}}'),
        ("POST", "/v0/watch?lenient=2", b'{"topics":{"a":{}}}'),
        ("POST", "/v0/watch", b'{"topics":{}}'),
        ("POST", "/v0/watch", b'{"topics":{"a":{}},"heartbeat_ms":10}'),
        ("POST", "/v0/watch", b""),
        ("GET", "/v0/watch/w", None),
        ("HEAD", "/v0/watch/w", None),
        ("GET", "/v0/watch/w?token=a-key-that-may-read-only", None),
        ("DELETE", "/v0/watch/w", None),
        ("GET", "/v0/watch", None),
        ("GET", "/v0/ws", None),
        ("GET", "/", None),
        ("GET", "/v1/topics/alpha", None),
    ):
        yield ScriptRequest(f"{method} {target}", method, request_bytes(method, target, body))
    yield from _framed_control()


def _framed_control() -> Iterator[ScriptRequest]:
    """Yield the same requests with unexpected bodies, in every form, and with malformed heads."""
    yield _raw("1.0", "GET /v0/health HTTP/1.0", "connection: keep-alive")
    yield _raw("upgrade", "GET /v0/health HTTP/1.1", "host: a", "connection: upgrade", "upgrade: h2c")
    for label, fields, body in (
        ("a body", ("content-length: 3",), b"abc"),
        ("in chunks", ("transfer-encoding: chunked",), b"3\r\nabc\r\n0\r\n\r\n"),
        ("packed", ("content-encoding: gzip", "content-length: 23"), gzip.compress(b"abc", mtime=0)),
        ("no chunk", ("transfer-encoding: chunked",), b"zz\r\nabc\r\n0\r\n\r\n"),
        ("not packed", ("content-encoding: gzip", "content-length: 3"), b"abc"),
        ("another coding", ("content-encoding: br", "content-length: 3"), b"abc"),
        ("another expectation", ("expect: 200-maybe", "content-length: 3"), b"abc"),
        ("too large", ("content-length: 99999999999",), b""),
        ("two framings", ("content-length: 5", "transfer-encoding: chunked"), b"0\r\n\r\n"),
        ("no host", ("host: b",), b""),
        ("large head", (f"x: {'y' * 40_000}",), b""),
        ("long field", (f"accept: {'y' * 10_000}",), b""),
    ):
        yield _raw(
            f"control, {label}", "GET /v0/topics?prefix=missing HTTP/1.1", "host: a", *fields, body=body
        )
