from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from shared.contract.api_keys import parse_keys
from shared.contract.endpoints import Match
from shared.http.cors import Origins
from shared.ipc.placement import Placement, encode_placement
from shared.ipc.shared_placement import SharedPlacement
from topicsd.http.http1.head_cache import REMEMBERED_MAX, HeadCache, KnownFields, KnownLine

SECRET = b"a-key-that-is-in-no-table-after-the-request"
PLAIN = b"host: x\r\ncontent-length: 2"
BLOCK = PLAIN + b"\r\nauthorization: Bearer " + SECRET
SCOPES = frozenset({"read"})


class Dispatch:
    origins = Origins()

    def __init__(self, placement: SharedPlacement | None = None) -> None:
        self.placement = placement or SharedPlacement.fixed(1)

    def owner_of(self, match: Match) -> int:
        return self.placement.owner_of(match.name)


@pytest.fixture
def heads() -> HeadCache:
    return HeadCache(Dispatch())  # type: ignore[arg-type]


def reachable(start: object) -> Iterator[object]:
    """Yield everything reachable from an object, except code."""
    seen: set[int] = set()
    waiting = [start]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type) or (type(one).__module__ == "builtins" and callable(one)):
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, msgspec.Struct):
            waiting += [getattr(one, name) for name in one.__struct_fields__]
        else:
            waiting += gc.get_referents(one)


def has_secret(heads: HeadCache) -> bool:
    return any(isinstance(one, bytes) and SECRET in one for one in reachable(vars(heads)))


def test_a_header_block_is_cached(heads: HeadCache) -> None:
    for block in (PLAIN, BLOCK):
        first = heads.fields(block)
        assert isinstance(first, KnownFields)
        assert heads.fields(block) is first
    assert heads.known_fields(BLOCK) is None


def test_no_key_is_cached_and_its_digest_authenticates_the_same(heads: HeadCache) -> None:
    known = heads.fields(BLOCK)
    assert isinstance(known, KnownFields)
    assert not has_secret(heads)
    keys = parse_keys(SECRET.decode())
    assert keys.check_sent(known.fields.sent_key, SCOPES, "") == keys.check(b"Bearer " + SECRET, SCOPES, "")
    other = heads.fields(BLOCK + b"x")
    assert isinstance(other, KnownFields)
    assert other.fields.sent_key != known.fields.sent_key


@pytest.mark.parametrize("name", ["token", "%74oken"])
def test_a_line_with_a_token_is_not_cached(heads: HeadCache, name: str) -> None:
    for path in ("/v0/ws", "/v0/topics/a"):
        if path == "/v0/ws" or name == "token":
            heads.line(f"GET {path}?{name}={SECRET.decode()} HTTP/1.1".encode())
    assert not has_secret(heads)


def test_the_cache_is_bounded(heads: HeadCache) -> None:
    for number in range(REMEMBERED_MAX + 10):
        heads.fields(BLOCK + b"%d" % number)
    assert sum(isinstance(one, KnownFields) for one in reachable(vars(heads))) <= REMEMBERED_MAX


def test_a_change_of_the_placement_changes_the_owner_of_cached_lines(tmp_path: Path) -> None:
    words, path = [0, 2, 0], tmp_path / "PLACEMENT.json"
    placement = SharedPlacement(words, str(path))
    heads = HeadCache(Dispatch(placement))  # type: ignore[arg-type]
    line = b"POST /v0/topics/orders HTTP/1.1"
    known = heads.line(line)
    assert isinstance(known, KnownLine)
    assert (known.owner, heads.known_line(line)) == (0, known)
    assert heads.placed(known) is known
    path.write_bytes(encode_placement(Placement(2).changed({"orders": 1})))
    words[0] = 1
    placement.refresh()
    assert heads.known_line(line) is None
    assert heads.placed(known).owner == 1
    assert heads.line(line).owner == 1  # type: ignore[union-attr]


def test_a_line_of_no_shard_is_never_placed(heads: HeadCache) -> None:
    for text in (b"GET /v0/health HTTP/1.1", b"GET /v0/nothing HTTP/1.1"):
        known = heads.line(text)
        assert isinstance(known, KnownLine)
        assert heads.placed(known) is known
