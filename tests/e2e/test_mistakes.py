"""Common mistakes of first-time users, and the answers of a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.harness.clients.raw_client import RawClient, request_bytes
from tests.harness.clients.ws_client import WsClient
from tests.harness.server.whole_server import WholeServer

JSON = "application/json"
CURL = "with curl, send --json or -H 'content-type: application/json'"
NAME_RULE = "1 to 255 of A-Z a-z 0-9 . _ : - that begins with a letter or digit"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    with WholeServer(tmp_path_factory.mktemp("mistakes")) as running, RawClient(running.port) as client:
        records = b'{"records":[{"data":1,"tag":"a"},{"data":2,"tag":"b"}]}'
        assert client.ask("POST", "/v0/topics/ev", records).status == 201
        queue = b'{"type":"queue","dead_letter":"mails-dead"}'
        assert client.ask("PUT", "/v0/topics/mails", queue).status == 201
        assert client.ask("POST", "/v0/topics/mails", records).status == 200
        yield running


EV, MAILS = "/v0/topics/ev", "/v0/topics/mails"
MISTAKES: list[tuple[str, str, str | bytes | None, int, str]] = [
    # Paths.
    ("GET", "/docs", None, 404, "no endpoint at /docs; GET / lists the endpoints"),
    ("POST", f"{EV}/difff", "{}", 404, f"no endpoint at {EV}/difff, did you mean {EV}/diff?"),
    ("GET", "/v0/topic/ev", None, 404, "no endpoint at /v0/topic/ev, did you mean /v0/topics/ev?"),
    ("GET", "/topics/ev", None, 404, "no endpoint at /topics/ev, did you mean /v0/topics/ev?"),
    ("GET", "/v0/routes", None, 404, "no endpoint at /v0/routes, did you mean /v0/routers?"),
    (
        "POST",
        "/v0/topics/a/b",
        "{}",
        404,
        'no endpoint at /v0/topics/a/b; a topic name must not contain "/"; GET / lists the endpoints',
    ),
    ("GET", f"{EV}/diff", None, 405, "GET is not allowed here, allowed: POST"),
    # JSON.
    (
        "POST",
        EV,
        "{'a':0}",
        400,
        "the body is not JSON: strings and keys must be in double quotes (byte 1)",
    ),
    ("POST", EV, '{"records":[],}', 400, "the body is not JSON: trailing comma in object (byte 14)"),
    (
        "POST",
        EV,
        "",
        400,
        'the body must be a JSON object such as {"records":[{"data":1}]}, got an empty body',
    ),
    ("POST", EV, b"\xff", 400, "the body must be UTF-8"),
    ("POST", EV, "[]", 400, 'the body must be a JSON object such as {"records":[{"data":1}]}, got an array'),
    (
        "POST",
        EV,
        '{"data":{}}',
        400,
        'data: unknown field; it belongs in a record, as in {"records":[{"data":1}]}',
    ),
    ("POST", EV, '{"records":{}}', 400, "records: must be an array, got an object"),
    ("POST", EV, '{"records":[1]}', 400, "records[0]: must be an object, got a number"),
    ("POST", EV, '{"records":[]}', 400, "records: must not be empty"),
    ("POST", EV, '{"records":[{}]}', 400, "records[0].data: is required, or data_base64"),
    # Append.
    (
        "POST",
        EV,
        '{"records":[{"data":1,"tag":5}]}',
        400,
        "records[0].tag: must be a string or null, got a number",
    ),
    (
        "POST",
        EV,
        '{"records":[{"data":1,"tags":"x"}]}',
        400,
        "records[0].tags: unknown field, did you mean tag?",
    ),
    (
        "POST",
        EV,
        '{"records":[{"data":1,"delay_ms":1000}]}',
        400,
        "records[0].delay_ms: unknown field here; it belongs at the top level of the body",
    ),
    (
        "POST",
        EV,
        '{"records":[{"data":1}],"idempotencykey":"x"}',
        400,
        "idempotencykey: unknown field, did you mean idempotency_key?",
    ),
    (
        "POST",
        EV,
        '{"records":[{"data":1}],"expected_head":7}',
        409,
        "expected_head: must be 2, the head including writes in progress, got 7",
    ),
    (
        "POST",
        EV,
        '{"records":[{"data":1}],"delay_ms":1}',
        400,
        'delay_ms: only queues have it, and topic "ev" is a log',
    ),
    (
        "POST",
        f"{EV}?retrun_seqs=0",
        '{"records":[{"data":1}]}',
        400,
        "retrun_seqs: unknown parameter, did you mean return_seqs?",
    ),
    (
        "POST",
        f"{EV}?return_seqs=yes",
        '{"records":[{"data":1}]}',
        400,
        'return_seqs: must be true, false, 1 or 0, got "yes"',
    ),
    # Topics.
    ("PUT", EV, '{"ttl":60000}', 400, "ttl: unknown field, did you mean ttl_ms?"),
    ("PUT", EV, '{"cap_record":10}', 400, "cap_record: unknown field, did you mean cap_records?"),
    (
        "PUT",
        EV,
        '{"records":[]}',
        400,
        "records: unknown field; append records with POST /v0/topics/:topic",
    ),
    (
        "PUT",
        EV,
        '{"durability":"sync"}',
        400,
        'durability: must be one of "disk", "ephemeral", "fsync", "memory", got "sync"',
    ),
    ("PUT", EV, '{"type":"stream"}', 400, 'type: must be one of "log", "queue", got "stream"'),
    ("PUT", EV, '{"ttl_ms":-1}', 400, "ttl_ms: must be at least 0, got -1"),
    ("PUT", EV, '{"type":"queue"}', 409, 'type: must stay "log", got "queue": it cannot change'),
    (
        "PUT",
        EV,
        '{"durability":"ephemeral"}',
        409,
        'durability: must stay "disk", got "ephemeral": a topic cannot become ephemeral or stop being so',
    ),
    ("PUT", EV, '{"order_by":"tag"}', 400, 'order_by: only queues have it, and topic "ev" is a log'),
    ("PUT", EV, '{"lease_ms":1000}', 400, 'lease_ms: only queues have it, and topic "ev" is a log'),
    (
        "PUT",
        "/v0/topics/new",
        '{"paused":true}',
        400,
        'paused: only queues have it, and topic "new" is a log; to create a queue, add "type":"queue"',
    ),
    ("PUT", "/v0/topics/my%20topic", "{}", 400, f'topic: must be a topic name, {NAME_RULE}, got "my topic"'),
    ("PUT", "/v0/topics/%C3%A4", "{}", 400, f'topic: must be a topic name, {NAME_RULE}, got "ä"'),
    (
        "PUT",
        f"{EV}/cursors/my%20cursor",
        '{"from_seq":1}',
        400,
        f'cursor: must be a cursor name, {NAME_RULE}, got "my cursor"',
    ),
    ("GET", f"{EV}/cursors/none", None, 404, 'topic "ev" has no cursor "none"'),
    ("GET", "/v0/topics/evv", None, 404, 'topic "evv" does not exist'),
    (
        "POST",
        "/v0/topics/evv",
        '{"records":[{"data":1}],"create":false}',
        404,
        'topic "evv" does not exist and create is false',
    ),
    ("GET", "/v0/topics?page_size=x", None, 400, 'page_size: must be an integer, got "x"'),
    (
        "GET",
        "/v0/topics?limit=5",
        None,
        400,
        "limit: unknown parameter; allowed: cursor, page_size, partial, prefix",
    ),
    ("GET", "/v0/routers?sorce=ev", None, 400, "sorce: unknown parameter, did you mean source?"),
    ("GET", "/v0/metrics?topcis=1", None, 400, "topcis: unknown parameter, did you mean topics?"),
    (
        "DELETE",
        EV,
        '{"match":"a"}',
        400,
        "the body must be empty: DELETE /v0/topics/:topic takes none; POST "
        "/v0/topics/:topic/delete deletes records",
    ),
    # Reads.
    ("POST", f"{EV}/diff", '{"from_seq":-1}', 400, "from_seq: must be at least 0, got -1"),
    (
        "POST",
        f"{EV}/diff",
        '{"from_seq":"0"}',
        400,
        "from_seq: must be an integer of at least 0, got a string",
    ),
    (
        "POST",
        f"{EV}/diff",
        '{"from_seq":1.5}',
        400,
        "from_seq: must be an integer of at least 0, got a number with a fraction",
    ),
    ("POST", f"{EV}/diff", '{"lmit":1}', 400, "lmit: unknown field, did you mean limit?"),
    ("POST", f"{EV}/diff", '{"tag":"a"}', 400, "tag: unknown field, did you mean include_tags?"),
    (
        "POST",
        f"{EV}/diff",
        '{"last":1,"from_seq":7}',
        400,
        "last: must not be sent with after_seq, epoch, tail or from_ts",
    ),
    (
        "POST",
        "/v0/watch",
        '{"topics":["ev"]}',
        400,
        'topics: must be an object such as {"orders":{"after_seq":0}}, got an array',
    ),
    (
        "POST",
        "/v0/watch",
        '{"topics":{"o!":{}}}',
        400,
        f'topics: must be a topic name, {NAME_RULE}, got "o!"',
    ),
    (
        "POST",
        "/v0/watch",
        '{"topics":{"ev":{"form_seq":1}}}',
        400,
        "topics.ev.form_seq: unknown field, did you mean after_seq?",
    ),
    ("GET", "/v0/watch/bogus", None, 404, "unknown watch session; create one with POST /v0/watch"),
    (
        "GET",
        "/v0/ws",
        None,
        426,
        "a WebSocket upgrade is required: send GET with `upgrade: websocket`",
    ),
    # Deletes.
    ("POST", f"{EV}/delete", "{}", 400, "before_seq, after_seq, match or seqs is required"),
    (
        "POST",
        f"{EV}/delete",
        '{"before_seq":3,"tag":"a"}',
        400,
        "tag: unknown field; allowed: after_seq, before_seq, match, seqs",
    ),
    (
        "POST",
        f"{EV}/delete",
        '{"match":["tag","Equals","a"]}',
        400,
        'match: must be a tag, ["tag","Eq","new.1"] or ["tag","Glob","new.*"] with one * at its end',
    ),
    (
        "POST",
        f"{EV}/delete",
        '{"match":{"tag":"a"}}',
        400,
        'match: must be a tag, ["tag","Eq","new.1"] or ["tag","Glob","new.*"], got an object',
    ),
    (
        "POST",
        f"{EV}/delete",
        '{"match":"a*"}',
        400,
        'match: must not end with *; send ["tag","Glob","a*"] for a prefix or ["tag","Eq","a*"] for this tag',
    ),
    # Queues.
    ("POST", f"{MAILS}/claim", "{}", 400, 'node: is required, as in {"node":"worker-1"}'),
    ("POST", f"{MAILS}/claim", '{"node":""}', 400, "node: must not be empty"),
    (
        "POST",
        f"{MAILS}/claim",
        '{"node":"w","wait":1000}',
        400,
        "wait: unknown field, did you mean wait_ms?",
    ),
    (
        "POST",
        f"{MAILS}/nack",
        '{"node":"w","seqs":[1],"delay":"5s"}',
        400,
        "delay: unknown field, did you mean delay_ms?",
    ),
    (
        "POST",
        f"{MAILS}/ack",
        '{"node":"w","seqs":[1],"lease_ids":[]}',
        400,
        "lease_ids: must have one lease_id from a claim for each seq in seqs",
    ),
    (
        "POST",
        f"{EV}/claim",
        '{"node":"w"}',
        409,
        'topic "ev" is a log; only queues ("type":"queue") have jobs',
    ),
    (
        "POST",
        f"{EV}/redrive",
        '{"tag":"eu"}',
        400,
        "tag: unknown field; allowed: after_seq, dry_run, from_ts, match, max, rate, seqs, to_ts",
    ),
    (
        "POST",
        f"{MAILS}/redrive",
        "{}",
        409,
        'topic "mails" is a queue; redrive its dead-letter topic "mails-dead" instead',
    ),
    ("GET", f"{MAILS}/explain", None, 400, "seq: is required, as in explain?seq=17"),
    ("GET", f"{MAILS}/explain?seq=x", None, 400, 'seq: must be an integer of at least 0, got "x"'),
    ("GET", f"{MAILS}/work?node=w&max=x", None, 400, 'max: must be an integer of at least 0, got "x"'),
    ("GET", f"{MAILS}/work?nod=w", None, 400, "nod: unknown parameter, did you mean node?"),
    ("GET", f"{MAILS}/work", None, 400, "node: is required, as in work?node=worker-1"),
    ("GET", f"{MAILS}/work?node=", None, 400, "node: must not be empty"),
    # Routes.
    ("GET", "/v0/topics", '{"prefix":"a"}', 400, "the body must be empty: GET /v0/topics takes none"),
    (
        "DELETE",
        "/v0/routers/r",
        '{"a":1}',
        400,
        "the body must be empty: DELETE /v0/routers/:router takes none",
    ),
    (
        "PUT",
        "/v0/routers/r",
        '{"source":"ev","dest":"b","fliter":["a"]}',
        400,
        "fliter: unknown field, did you mean filter?",
    ),
    (
        "PUT",
        "/v0/routers/r",
        '{"source":"ev","dest":"b","filter":"paid.*"}',
        400,
        'filter: must not end with *; send ["tag","Glob","paid.*"] for a prefix'
        ' or ["tag","Eq","paid.*"] for this tag',
    ),
    (
        "PUT",
        "/v0/routers/r",
        '{"source":"ev","dest":"b","from":"earlyest"}',
        400,
        'from: must be one of "earliest", "head", got "earlyest"',
    ),
    (
        "PUT",
        "/v0/routers/my%20route",
        '{"source":"ev","dest":"b"}',
        400,
        "router: must be a route name, 1 to 255 of A-Z a-z 0-9 . _ : > - that begins with a "
        'letter or digit, got "my route"',
    ),
    ("GET", "/v0/routers/none", None, 404, 'route "none" does not exist'),
]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    MISTAKES,
    ids=[f"{method} {path} {body!r}"[:80] for method, path, body, *_ in MISTAKES],
)
def test_a_mistake_is_answered_with_the_rule_and_the_fix(
    server: WholeServer, method: str, path: str, body: str | bytes | None, status: int, message: str
) -> None:
    sent = body.encode() if isinstance(body, str) else body
    with RawClient(server.port) as client:
        answer = client.ask(method, path, sent)
        assert (answer.message, answer.status) == (message, status)
        topic = client.ask("GET", f"{EV}?touch=false").json
    assert (topic["count"], topic["config"]["ttl_ms"]) == (2, 0)


@pytest.mark.parametrize(
    ("content_type", "message"),
    [
        (
            "application/x-www-form-urlencoded",
            f'content-type: must be application/json, got "application/x-www-form-urlencoded"; {CURL}',
        ),
        (None, f"content-type: must be application/json, got none; {CURL}"),
        ("application/json; charset=latin1", 'content-type: charset must be utf-8, got "latin1"'),
    ],
)
def test_a_body_of_another_content_type(server: WholeServer, content_type: str | None, message: str) -> None:
    for path in (f"{EV}/diff", "/v0/watch"):
        with RawClient(server.port) as client:
            answer = client.ask("POST", path, b"{}", content_type=content_type)
        assert (answer.status, answer.message) == (415, message)


def test_a_body_that_is_not_gzip(server: WholeServer) -> None:
    with RawClient(server.port) as client:
        client.send(request_bytes("POST", EV, b'{"records":[{"data":1}]}', "content-encoding: gzip"))
        answer = client.read_answer()
    message = "content-encoding: the body must be valid gzip: it is damaged"
    assert (answer.status, answer.message) == (400, message)


def test_sizes_are_named_with_their_units(server: WholeServer) -> None:
    record = b'{"records":[{"data":"%b"}]}' % (b"x" * (2 << 20))
    with RawClient(server.port) as client:
        assert client.ask("POST", EV, record).message == (
            "records[0]: data and meta must be at most 1 MiB (1048576 bytes) together, got 2097154 bytes"
        )
        client.send(request_bytes("POST", EV, b"").replace(b"content-length: 0", b"content-length: 72000000"))
        assert client.read_answer().message == "the body must be at most 64 MiB (67108864 bytes)"


def test_a_reused_idempotency_key_with_other_records(server: WholeServer) -> None:
    with RawClient(server.port) as client:
        for data, status in ((1, 201), (2, 409)):
            body = b'{"records":[{"data":%d}],"idempotency_key":"k"}' % data
            answer = client.ask("POST", "/v0/topics/keyed", body)
            assert answer.status == status
    assert answer.message == (
        "idempotency_key: already used for other records; repeat those records or send a new key"
    )


@pytest.mark.parametrize("path", ["/", "/v0"])
def test_the_root_names_the_server_and_its_endpoints(server: WholeServer, path: str) -> None:
    with RawClient(server.port) as client:
        answer = client.ask("GET", path)
        version = client.ask("GET", "/v0/health").json["version"]
    assert answer.status == 200
    assert (answer.json["server"], answer.json["version"]) == ("topicsd", version)
    assert {"POST /v0/topics/:topic", "GET /v0/ready"} <= set(answer.json["endpoints"])


def test_a_deleted_name_may_be_deleted_again(server: WholeServer) -> None:
    with RawClient(server.port) as client:
        for path in ("/v0/topics/none", "/v0/routers/none", f"{EV}/cursors/none"):
            answer = client.ask("DELETE", path)
            assert (answer.status, answer.json["deleted"]) == (200, False)


def test_a_job_leased_to_another_worker_is_skipped_with_the_reason(server: WholeServer) -> None:
    with RawClient(server.port) as client:
        claimed = client.ask("POST", f"{MAILS}/claim", b'{"node":"a"}').json["claimed"][0]["$seq"]
        body = b'{"node":"b","seqs":[%d,77]}' % claimed
        answer = client.ask("POST", f"{MAILS}/ack", body).json
    assert answer["skipped"] == [claimed, 77]
    assert answer["skipped_reasons"] == {str(claimed): "other_node", "77": "not_written"}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"op": "subscribe"}, "topics: is required, unless topic is sent"),
        (
            {"op": "subscribe", "topic": "ev", "form_seq": 3},
            "form_seq: unknown field, did you mean after_seq?",
        ),
        (
            {"op": "subscribe", "topic": "ev", "include_tagz": True},
            "include_tagz: unknown field, did you mean include_tags?",
        ),
        ({"op": "listen"}, "op: must be one of subscribe, unsubscribe, publish, ping"),
        (
            {"op": "subscrib"},
            "op: must be one of subscribe, unsubscribe, publish, ping; did you mean subscribe?",
        ),
        ({"op": 5}, "op: must be a string, one of subscribe, unsubscribe, publish, ping"),
        ({"type": "ping"}, "op: is required, one of subscribe, unsubscribe, publish, ping"),
        ({"op": "publish", "topic": "ev", "records": {}}, "records: must be an array, got an object"),
    ],
)
def test_error_messages_of_a_websocket(server: WholeServer, message: dict[str, object], text: str) -> None:
    with WsClient(server.port) as socket:
        socket.say_raw(json.dumps(message).encode())
        assert socket.read()["message"] == text
