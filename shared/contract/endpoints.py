"""Every endpoint of the API in one table, and the process that answers it.

A worker answers an endpoint with `is_data`: the worker of the shard that owns the topic or the watch session
in the path, or any worker when the path names neither. That worker reads the body, and sends requests to the
supervisor itself. The supervisor answers all other (control) endpoints. A path is split as it was sent; each
segment is decoded once and never split again, so `%2F` is a character of a name, which no valid name
contains.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote_plus, unquote_to_bytes

import msgspec

from shared.contract.errors import INVALID_REQUEST, METHOD_NOT_ALLOWED, NOT_FOUND, Refusal, invalid
from shared.text.nearest_path import matches, nearest_path
from shared.text.unknown_name import unknown_name

TOPIC: Final = ":topic"
WATCH_ID: Final = ":wid"
ROUTER: Final = ":router"
KEY: Final = ":key"

SHOWN_CHARACTERS_MAX: Final = 64
PATH_CHARACTERS_MAX: Final = 256


class Endpoint(msgspec.Struct, frozen=True):
    method: str
    pattern: str
    operation: str
    scopes: frozenset[str]
    is_data: bool
    is_open: bool = False
    """Whether the endpoint needs no key."""
    is_signed: bool = False
    """Whether the body has a signature of a node, in place of a key."""
    is_stream: bool = False
    """Whether the response has no end."""
    is_upgrade: bool = False
    """Whether the request switches the protocol, whose operations check their own scopes."""
    takes_token: bool = False
    """Whether the query may carry the key, for browsers that cannot set a header field."""
    parameters: frozenset[str] = frozenset()
    """Names of the allowed query parameters."""
    takes_body: bool = True
    """Whether a body is accepted. If not, it is refused: ignoring a delete filter is dangerous."""
    variable: str = ""
    """The first segment of the pattern that begins with a colon; empty without one."""
    is_broker: bool = False
    """Whether the brokers answer it, which have the shared topics."""
    is_audited: bool = False
    """Whether the answer is written to the audit log, since the operation changes configuration."""
    has_handler: bool = True
    """Whether the operation is in the table of handlers: it is for one topic and no stream."""


class Match(msgspec.Struct, frozen=True):
    endpoint: Endpoint
    name: str
    """Decoded path segment of the pattern's variable; empty when it has none."""
    item: str = ""
    """Decoded path segment of the pattern's second variable."""

    @property
    def bound_name(self) -> str:
        """Return the name that the key must cover; empty when the path has none."""
        return "" if self.endpoint.variable in (WATCH_ID, KEY) else self.name


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DECLARATIONS: Final[tuple[Endpoint, ...]] = (
    Endpoint("GET", "/v0/topics", "list_topics", _words("read"), is_data=False),
    Endpoint("PUT", "/v0/topics/:topic", "put_topic", _words("admin"), is_data=True),
    Endpoint("GET", "/v0/topics/:topic", "topic_state", _words("read"), is_data=True),
    Endpoint("POST", "/v0/topics/:topic", "append", _words("write"), is_data=True),
    Endpoint("POST", "/v0/topics/:topic/records", "append_record", _words("write"), is_data=True),
    Endpoint("GET", "/v0/topics/:topic/records/:seq", "record", _words("read"), is_data=True),
    Endpoint("GET", "/v0/topics/:topic/bounds", "bounds", _words("read"), is_data=True),
    Endpoint("DELETE", "/v0/topics/:topic", "delete_topic", _words("delete"), is_data=True),
    Endpoint("POST", "/v0/topics/:topic/diff", "diff", _words("read"), is_data=True),
    Endpoint(
        "GET",
        "/v0/topics/:topic/stream",
        "stream",
        _words("read"),
        is_data=True,
        is_stream=True,
        takes_token=True,
    ),
    Endpoint("POST", "/v0/topics/:topic/delete", "delete_records", _words("delete"), is_data=True),
    Endpoint("GET", "/v0/topics/:topic/cursors", "list_cursors", _words("read"), is_data=True),
    Endpoint("PUT", "/v0/topics/:topic/cursors/:cursor", "put_cursor", _words("write"), is_data=True),
    Endpoint("GET", "/v0/topics/:topic/cursors/:cursor", "cursor_state", _words("read"), is_data=True),
    Endpoint("DELETE", "/v0/topics/:topic/cursors/:cursor", "delete_cursor", _words("delete"), is_data=True),
    Endpoint("GET", "/v0/topics/:topic/schedules", "list_schedules", _words("read"), is_data=True),
    Endpoint("PUT", "/v0/topics/:topic/schedules/:schedule", "put_schedule", _words("admin"), is_data=True),
    Endpoint("GET", "/v0/topics/:topic/schedules/:schedule", "schedule_state", _words("read"), is_data=True),
    Endpoint(
        "DELETE", "/v0/topics/:topic/schedules/:schedule", "delete_schedule", _words("delete"), is_data=True
    ),
    Endpoint("POST", "/v0/topics/:topic/claim", "claim", _words("read write"), is_data=True),
    Endpoint("POST", "/v0/topics/:topic/ack", "ack", _words("write"), is_data=True),
    Endpoint("POST", "/v0/topics/:topic/nack", "nack", _words("write"), is_data=True),
    Endpoint("POST", "/v0/topics/:topic/extend", "extend", _words("write"), is_data=True),
    Endpoint("POST", "/v0/topics/:topic/redrive", "redrive", _words("admin"), is_data=True),
    Endpoint("POST", "/v0/topics/:topic/move", "move", _words("admin"), is_data=True),
    Endpoint("POST", "/v0/topics/:topic/restore", "restore", _words("admin"), is_data=True),
    Endpoint("GET", "/v0/topics/:topic/owner", "owner", _words("read"), is_data=True),
    Endpoint("POST", "/v0/topics/:topic/seal", "seal", _words("admin"), is_data=True),
    Endpoint("POST", "/v0/topics/:topic/adopt", "adopt", _words("admin"), is_data=True),
    Endpoint("GET", "/v0/topics/:topic/explain", "explain", _words("read"), is_data=True),
    Endpoint(
        "GET",
        "/v0/topics/:topic/work",
        "work",
        _words("read write"),
        is_data=True,
        is_stream=True,
        takes_token=True,
    ),
    Endpoint("POST", "/v0/topics/:topic/fence", "fence", _words("admin"), is_data=True),
    Endpoint("POST", "/v0/topics/:topic/unfence", "unfence", _words("admin"), is_data=True),
    Endpoint("POST", "/produce", "produce", _words("write"), is_data=True, is_broker=True),
    Endpoint("POST", "/v0/produce", "produce", _words("write"), is_data=True, is_broker=True),
    Endpoint("POST", "/consume", "consume", _words("read"), is_data=True, is_broker=True),
    Endpoint("POST", "/v0/consume", "consume", _words("read"), is_data=True, is_broker=True),
    Endpoint("GET", "/health", "broker_health", _words(""), is_data=True, is_open=True, is_broker=True),
    Endpoint("GET", "/metrics", "broker_metrics", _words("read"), is_data=True, is_broker=True),
    Endpoint("GET", "/metrics/prometheus", "broker_prometheus", _words("read"), is_data=True, is_broker=True),
    Endpoint("GET", "/v0/cluster", "cluster", _words("read"), is_data=True, is_broker=True),
    Endpoint(
        "POST",
        "/v0/cluster/commit",
        "home_commit",
        _words(""),
        is_data=True,
        is_broker=True,
        is_signed=True,
    ),
    Endpoint("GET", "/v0/routers", "list_routers", _words("read"), is_data=False),
    Endpoint("PUT", "/v0/routers/:router", "put_router", _words("admin"), is_data=True),
    Endpoint("GET", "/v0/routers/:router", "router_state", _words("read"), is_data=False),
    Endpoint("DELETE", "/v0/routers/:router", "delete_router", _words("delete"), is_data=False),
    Endpoint("GET", "/v0/keys", "list_keys", _words("admin"), is_data=True),
    Endpoint("PUT", "/v0/keys/:key", "put_key", _words("admin"), is_data=True),
    Endpoint("GET", "/v0/keys/:key", "key_state", _words("admin"), is_data=True),
    Endpoint("DELETE", "/v0/keys/:key", "delete_key", _words("admin"), is_data=True),
    Endpoint("POST", "/v0/keys/:key/rotate", "rotate_key", _words("admin"), is_data=True),
    Endpoint("GET", "/v0/whoami", "whoami", _words(""), is_data=True),
    Endpoint("POST", "/v0/backup-points", "create_backup_point", _words("admin"), is_data=False),
    Endpoint(
        "GET",
        "/v0/stream",
        "stream_topics",
        _words("read"),
        is_data=True,
        is_stream=True,
        takes_token=True,
    ),
    Endpoint("POST", "/v0/watch", "create_watch", _words("read"), is_data=True),
    Endpoint(
        "GET", "/v0/watch/:wid", "watch", _words("read"), is_data=True, is_stream=True, takes_token=True
    ),
    Endpoint("GET", "/v0/ws", "web_socket", _words(""), is_data=True, takes_token=True, is_upgrade=True),
    Endpoint("GET", "/", "about", _words(""), is_data=False, is_open=True),
    Endpoint("GET", "/v0", "about", _words(""), is_data=False, is_open=True),
    Endpoint("GET", "/v0/health", "health", _words(""), is_data=False, is_open=True),
    Endpoint("GET", "/healthz", "health", _words(""), is_data=False, is_open=True),
    Endpoint("GET", "/v0/ready", "ready", _words(""), is_data=False, is_open=True),
    Endpoint("GET", "/readyz", "ready", _words(""), is_data=False, is_open=True),
    Endpoint("GET", "/v0/metrics", "metrics", _words("read"), is_data=False),
    Endpoint("GET", "/v0/store", "store", _words("read"), is_data=False),
    Endpoint("GET", "/v0/shards", "shards", _words("read"), is_data=False),
    Endpoint("POST", "/v0/shards", "reshard", _words("admin"), is_data=True),
)


_STREAM_PARAMETERS: Final = (
    "since last tail match limit node include_tags include_meta include_data consistency"
    " max_batch_bytes heartbeat_ms missing"
)
_PARAMETERS: Final = {
    "list_topics": "prefix page_size cursor partial",
    "topic_state": "touch from_ts last",
    "append": "return_seqs",
    "append_record": "tag node create return_seqs as",
    "record": "as",
    "delete_topic": "if_empty",
    "explain": "seq",
    "work": "node max lease_ms",
    "stream": f"after_seq from_seq epoch {_STREAM_PARAMETERS}",
    "stream_topics": f"topics {_STREAM_PARAMETERS}",
    "list_routers": "prefix page_size cursor partial source dest",
    "create_watch": "lenient",
    "ready": "allow_degraded",
    "metrics": "topics routers prefix",
}


_AUDITED: Final = _words(
    "put_topic delete_topic move restore seal adopt fence unfence put_router delete_router reshard"
    " put_key rotate_key delete_key put_schedule delete_schedule"
)


def _completed(endpoint: Endpoint) -> Endpoint:
    variable = next((part for part in endpoint.pattern.split("/") if part.startswith(":")), "")
    has_handler = endpoint.is_data and not endpoint.is_stream and variable == TOPIC
    parameters = {*_PARAMETERS.get(endpoint.operation, "").split(), *["token"][: endpoint.takes_token]}
    return msgspec.structs.replace(
        endpoint,
        variable=variable,
        has_handler=has_handler,
        is_audited=endpoint.operation in _AUDITED,
        parameters=frozenset(parameters),
        takes_body=endpoint.method in ("POST", "PUT")
        and endpoint.is_data
        and endpoint.operation not in ("fence", "unfence"),
    )


ENDPOINTS: Final = tuple(map(_completed, _DECLARATIONS))


def _table() -> dict[tuple[str, ...], dict[str, Endpoint]]:
    """Return the endpoints by the segments of their pattern, with `:` for every variable."""
    table: dict[tuple[str, ...], dict[str, Endpoint]] = {}
    for endpoint in ENDPOINTS:
        key = tuple(":" if part.startswith(":") else part for part in endpoint.pattern.split("/")[1:])
        table.setdefault(key, {})[endpoint.method] = endpoint
    return table


_TABLE = _table()
# A variable is always the third segment of a path, and a second one the fifth.
_VARIABLE_AT = 2
_ITEM_AT = 4


def resolve(method: str, path: str) -> Match | Refusal:
    """Return the endpoint of a request, or a refusal: 404, or 405 with the allowed methods.

    An endpoint for GET also answers HEAD.
    """
    parts = path.split("/")[1:]
    name = item = ""
    methods = _TABLE.get(tuple(parts)) if ":" not in parts else None
    if methods is None and len(parts) > _VARIABLE_AT:
        name_part = parts[_VARIABLE_AT]
        item_part = parts[_ITEM_AT] if len(parts) == _ITEM_AT + 1 else ""
        rest = parts[_VARIABLE_AT + 1 :] if not item_part else [*parts[_VARIABLE_AT + 1 : _ITEM_AT], ":"]
        methods = _TABLE.get((*parts[:_VARIABLE_AT], ":", *rest))
        if methods is not None:
            decoded, second = _decode(name_part), _decode(item_part)
            if isinstance(decoded, Refusal):
                return decoded
            if isinstance(second, Refusal):
                return second
            name, item = decoded, second
    if methods is None:
        return Refusal(NOT_FOUND, _not_found(method, path, parts))
    endpoint = methods.get("GET" if method == "HEAD" else method)
    if endpoint is None:
        return _not_allowed(method, methods)
    return Match(endpoint, name, item)


def _not_found(method: str, path: str, parts: list[str]) -> str:
    """Return a message that there is no such endpoint, with the nearest one if there is one."""
    message = f"no endpoint at {path[:PATH_CHARACTERS_MAX]}"
    others = [pattern for pattern, methods in _TABLE.items() if method not in methods]
    nearest = nearest_path(tuple(parts), _TABLE, others) if len(path) <= PATH_CHARACTERS_MAX else None
    if nearest is not None:
        methods = next(methods for pattern, methods in _TABLE.items() if matches(pattern, nearest))
        instead = "" if method in methods else f"{min(methods)} "
        return f"{message}, did you mean {instead}/{'/'.join(nearest)}?"
    has_slash = "topics" in parts[:2] and len(parts) > parts.index("topics") + 2
    slash_hint = '; a topic name must not contain "/"' if has_slash else ""
    return f"{message}{slash_hint}; GET / lists the endpoints"


_INSTEAD: Final = {
    ("POST", "/v0/topics"): "PUT /v0/topics/:topic creates a topic",
    ("POST", "/v0/routers"): "PUT /v0/routers/:router creates a route",
    ("GET", "/v0/topics/:topic/records"): "POST /v0/topics/:topic/diff reads records",
    ("GET", "/v0/watch"): "POST /v0/watch creates a session",
    ("DELETE", "/v0/topics/:topic/records/:seq"): "POST /v0/topics/:topic/delete deletes records",
}
"""What to send in place of a method that a path does not have."""


def _not_allowed(method: str, methods: dict[str, Endpoint]) -> Refusal:
    allowed = ", ".join(sorted({*methods, "HEAD"} if "GET" in methods else methods))
    pattern = next(iter(methods.values())).pattern
    instead = _INSTEAD.get((method, pattern))
    if method == "OPTIONS":
        instead = "TOPICS_CORS_ORIGINS allows web pages of other origins"
    elif method == "PATCH" and "PUT" in methods:
        instead = f"PUT {pattern} changes it"
    hint = "" if instead is None else f"; {instead}"
    message = f"{method} is not allowed here, allowed: {allowed}{hint}"
    return Refusal(METHOD_NOT_ALLOWED, message, {"allow": allowed})


def refuse_parameters(endpoint: Endpoint, query: str) -> Refusal | None:
    """Refuse a query that is not UTF-8, has a parameter twice, or one that the endpoint does not have.

    >>> match = resolve("GET", "/v0/topics")
    >>> print(refuse_parameters(match.endpoint, "prefix=a&pagesize=5").message)
    pagesize: unknown parameter, did you mean page_size?
    >>> print(refuse_parameters(match.endpoint, "prefix=a&prefix=b").message)
    prefix: must be given once
    """
    if "%" in query and isinstance(_decode(query), Refusal):
        return Refusal(INVALID_REQUEST, "query: must be UTF-8 after percent-decoding")
    names: set[str] = set()
    for part in query.split("&"):
        name = part.partition("=")[0]
        if not name:
            continue
        if name not in endpoint.parameters:
            name = unquote_plus(name)
            if name not in endpoint.parameters:
                field = name if len(name) <= SHOWN_CHARACTERS_MAX else f"{name[:SHOWN_CHARACTERS_MAX]}..."
                message = unknown_name("parameter", name, endpoint.parameters)
                return invalid(field, f"{message}")
        if name in names:
            return invalid(name, "must be given once")
        names.add(name)
    return None


def refuse_body(endpoint: Endpoint, body: bytes) -> Refusal | None:
    """Refuse a body that the endpoint does not accept; an empty object is allowed."""
    if endpoint.takes_body or body.strip() in (b"", b"{}"):
        return None
    message = f"the body must be empty: {endpoint.method} {endpoint.pattern} takes none"
    if endpoint.operation == "delete_topic":
        message += "; POST /v0/topics/:topic/delete deletes records"
    return Refusal(INVALID_REQUEST, message)


def _decode(segment: str) -> str | Refusal:
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        return Refusal(INVALID_REQUEST, "the name in the path must be UTF-8 after decoding")
