"""Every kind of error that a decoder reports about our structs, in the words of JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from shared.contract.errors import Refusal
from topicsd.http.websocket import messages as ws_messages
from topicsd.service import routes as route_body
from topicsd.service.input import bodies
from topicsd.service.input.json_body import JsonBody
from topicsd.service.queues import bodies as queue_bodies
from topicsd.service.queues import redrive_body
from topicsd.service.watch import body as watch_body

MODULES = (bodies, route_body, queue_bodies, redrive_body, watch_body, ws_messages)
KINDS: list[JsonBody[Any]] = [
    one
    for module in MODULES
    for name, one in vars(module).items()
    if isinstance(one, JsonBody) and name != "_ENVELOPE"
]
VALUES: list[Any] = [None, True, 1, -1, 1.5, "text", [], [1], ["a"], [None], [{}], {}, {"k": 1}, {"k": {}}]
RAW = [b"1e400", b"1" * 5000]
PYTHON = re.compile(
    r"`|\bstr\b|\bint\b|\bfloat\b|\bbool\b|Expected|\| |Object |None|True\b|False\b|Literal|enum"
)


def _paths(expected: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield every path in a struct, with the first element of lists and the key `k` of maps."""
    yield path
    if isinstance(expected, inspect.UnionType):
        for one in expected.types:
            yield from _paths(one, path)
    elif isinstance(expected, inspect.StructType):
        for field in expected.fields:
            yield from _paths(field.type, (*path, field.encode_name))
    elif isinstance(expected, inspect.ListType):
        yield from _paths(expected.item_type, (*path, 0))
    elif isinstance(expected, inspect.DictType):
        yield from _paths(expected.value_type, (*path, "k"))


def _nested(path: tuple[str | int, ...], value: bytes) -> bytes:
    for step in reversed(path):
        value = b"[%b]" % value if isinstance(step, int) else b'{"%b":%b}' % (str(step).encode(), value)
    return value


@pytest.mark.parametrize("body", KINDS, ids=lambda body: body.kind.__name__)
def test_messages_do_not_use_names_of_python_types(body: JsonBody[Any]) -> None:
    messages = set()
    values = [json.dumps(value).encode() for value in VALUES] + RAW
    for path in _paths(inspect.type_info(body.kind)):
        for value in [*values, b'{"unknown_field":1}']:
            refusal = body.decode(_nested(path, value))
            if isinstance(refusal, Refusal):
                messages.add(refusal.message)
    assert messages
    assert [one for one in messages if PYTHON.search(one)] == []
    assert any("unknown field" in one for one in messages)


@pytest.mark.parametrize("body", KINDS, ids=lambda body: body.kind.__name__)
def test_every_kind_is_strict_at_every_level(body: JsonBody[Any]) -> None:
    def is_strict(expected: Any) -> bool:
        if isinstance(expected, inspect.UnionType):
            return all(map(is_strict, expected.types))
        if isinstance(expected, inspect.ListType):
            return is_strict(expected.item_type)
        if isinstance(expected, inspect.DictType):
            return is_strict(expected.value_type)
        if not isinstance(expected, inspect.StructType):
            return True
        return expected.forbid_unknown_fields and all(is_strict(field.type) for field in expected.fields)

    assert is_strict(inspect.type_info(body.kind))


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    seq: int = 0
    choice: str | None = None


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    inner: dict[str, Inner] = {}
    many: list[Inner] = []
    wait_ms: int | str = 0
    cap_bytes: int | str | None = None


OUTER = JsonBody(Outer, '{"name":"a"}', {"nickname": "send name"})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("[]", 'the body must be a JSON object such as {"name":"a"}, got an array'),
        ("1.5", 'the body must be a JSON object such as {"name":"a"}, got a number with a fraction'),
        ("{}", 'name: is required, as in {"name":"a"}'),
        ('{"nam":1}', "nam: unknown field, did you mean name?"),
        ('{"nickname":1}', "nickname: unknown field; send name"),
        ('{"zzz":1}', "zzz: unknown field; allowed: cap_bytes, inner, many, name, wait_ms"),
        ('{"many":[{},{"sq":1}]}', "many[1].sq: unknown field, did you mean seq?"),
        (
            '{"many":[{"wait_ms":1}]}',
            "many[0].wait_ms: unknown field here; it belongs at the top level of the body",
        ),
        ('{"inner":{"a":{},"b.c":{"sq":1}}}', "inner.b.c.sq: unknown field, did you mean seq?"),
        (
            '{"inner":{"a":{"seq":1},"b":{"seq":"x"}}}',
            "inner.b.seq: must be an integer of at least 0, got a string",
        ),
        ('{"inner":{"a":{"choice":1}}}', "inner.a.choice: must be a string or null, got a number"),
        (
            '{"wait_ms":1.5}',
            'wait_ms: must be an integer of at least 0 or a string such as "10m", got a number with a ',
        ),
        (
            '{"cap_bytes":true}',
            'cap_bytes: must be an integer of at least 0, a string such as "64 MiB" or null, got a bool',
        ),
        ('{"wait_ms":1e999}', "wait_ms: must be an integer of at least 0, got a number out of range"),
        ("{'name':1}", "the body is not JSON: strings and keys must be in double quotes (byte 1)"),
        ('{"name":"a",}', "the body is not JSON: trailing comma in object (byte 12)"),
        ('{"name":"a"} x', "the body is not JSON: unexpected text after the end of the object (byte 14)"),
        ('{"name":"a"', "the body is not JSON: it ends too early"),
        (
            '{"name":"\\ud800"}',
            "the body is not JSON: it ends too early, or one half of a \\ud pair is missing",
        ),
        ("x", "the body is not JSON: invalid character (byte 0)"),
        (
            '{"' + "k" * 100 + '":1}',
            "k" * 64 + "...: unknown field; allowed: cap_bytes, inner, many, name, wait_ms",
        ),
        ('{"a` - at `$.many[0].b":1}', "many[0].b.a: unknown field"),
    ],
)
def test_message_of_an_invalid_body(body: str, message: str) -> None:
    refusal = OUTER.decode(body.encode())
    assert isinstance(refusal, Refusal)
    assert refusal.message.startswith(message)
