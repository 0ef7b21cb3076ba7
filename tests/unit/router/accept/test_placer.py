from __future__ import annotations

from pathlib import Path

import pytest

from router.accept.placer import ANY_BROKER, ANY_WORKER, CACHED_MAX, CONTROL, Placer
from shared.contract.endpoints import ENDPOINTS
from shared.contract.names import topic_id
from shared.contract.watch_id import WatchIds
from shared.http.head import LINE_BYTES_MAX
from shared.ipc.placement import Placement, encode_placement, shard_of
from shared.ipc.shared_placement import SharedPlacement

SHARDS = 5
IDS = WatchIds(b"instance--------")
WID = IDS.make(3, bytes(range(16)))


@pytest.fixture
def placer() -> Placer:
    return Placer(IDS, SharedPlacement.fixed(SHARDS))


@pytest.mark.parametrize("route", ENDPOINTS, ids=lambda route: route.operation)
def test_every_endpoint_is_placed(placer: Placer, route: object) -> None:
    path = route.pattern.replace(":topic", "orders").replace(":router", "r").replace(":wid", WID)  # type: ignore[attr-defined]
    line = f"{route.method} {path}?x=1 HTTP/1.1\r\n".encode()  # type: ignore[attr-defined]
    owner = {
        ":topic": shard_of(topic_id("orders"), SHARDS),
        ":wid": 3,
        ":router": ANY_WORKER,
        ":key": ANY_WORKER,
        "": ANY_WORKER,
    }
    assert placer.place(line) == (owner[route.variable] if route.is_data else CONTROL)  # type: ignore[attr-defined]


def brokers(shard_count: int) -> SharedPlacement:
    """Return the placement of a node with two brokers, whose owner numbers are 256 and 257."""
    return SharedPlacement((0, shard_count, 0, 2, 256), "")


@pytest.mark.parametrize(
    ("line", "with_shards", "without_shards"),
    [
        (b"POST /produce HTTP/1.1", ANY_BROKER, ANY_BROKER),
        (b"GET /v0/cluster HTTP/1.1", ANY_BROKER, ANY_BROKER),
        (b"POST /v0/topics/orders HTTP/1.1", shard_of(topic_id("orders"), SHARDS), ANY_BROKER),
        (b"POST /v0/topics/a%20b HTTP/1.1", ANY_WORKER, ANY_WORKER),
        (b"POST /v0/watch HTTP/1.1", ANY_WORKER, ANY_WORKER),
        (b"GET /v0/ready HTTP/1.1", CONTROL, CONTROL),
        (f"GET /v0/watch/{IDS.make(257, bytes(16))} HTTP/1.1".encode(), 257, 257),
        (f"GET /v0/watch/{IDS.make(258, bytes(16))} HTTP/1.1".encode(), ANY_WORKER, ANY_WORKER),
        (f"GET /v0/watch/{IDS.make(3, bytes(16))} HTTP/1.1".encode(), 3, ANY_WORKER),
    ],
)
def test_what_brokers_answer_is_placed_at_a_broker(
    line: bytes, with_shards: int, without_shards: int
) -> None:
    assert Placer(IDS, brokers(SHARDS)).place(line + b"\r\n") == with_shards
    assert Placer(IDS, brokers(0)).place(line + b"\r\n") == without_shards


def test_a_session_id_of_another_server_goes_to_any_worker(placer: Placer) -> None:
    wid = WatchIds(b"another---------").make(3, bytes(16))
    for one in (wid, WID[:-1], "w"):
        assert placer.place(f"GET /v0/watch/{one} HTTP/1.1\r\n".encode()) == ANY_WORKER


def test_a_line_that_may_contain_a_key_is_not_cached(placer: Placer) -> None:
    for _ in range(2):
        assert placer.place(f"GET /v0/watch/{WID}?token=secret HTTP/1.1\r\n".encode()) == 3
    assert placer._placements == {}


def test_a_name_is_decoded_before_it_is_placed(placer: Placer) -> None:
    line = b"GET /v0/topics/%6frder%73 HTTP/1.1\r\n"
    assert placer.place(line) == shard_of(topic_id("orders"), SHARDS)


def test_head_is_placed_as_get_is(placer: Placer) -> None:
    assert placer.place(b"HEAD /v0/health HTTP/1.1\r\n") == CONTROL


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("rest", [b"", b"\r\n", b"host: a\r\n\r\nGET"])
def test_bytes_after_the_line_do_not_matter(placer: Placer, version: bytes, rest: bytes) -> None:
    for _ in range(2):
        assert placer.place(b"GET /v0/health HTTP/" + version + b"\r\n" + rest) == CONTROL


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"\r\n",
        b"GET /v0/health HTTP/1.1\n",
        b"GET  /v0/health HTTP/1.1\r\n",
        b"GET /v0/health HTTP/2.0\r\n",
        b"get /v0/health HTTP/1.1\r\n",
        b"DELETE /v0/health HTTP/1.1\r\n",
        b"GET /v0/topics/ HTTP/1.1\r\n",
        b"GET /v0/topics/a%2Fb HTTP/1.1\r\n",
        b"GET /v0/topics/%ff HTTP/1.1\r\n",
        b"GET /v0/topics/" + b"a" * 256 + b" HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00\n",
    ],
)
def test_a_line_without_an_owner_is_placed_at_any_worker(placer: Placer, line: bytes) -> None:
    assert placer.place(line) == ANY_WORKER


def test_an_incomplete_line_needs_more_input_until_it_is_too_long(placer: Placer) -> None:
    assert placer.place(b"") is None
    assert placer.place(b"GET /v0/health HTTP/1.1\r") is None
    longest = b"GET /" + b"a" * (LINE_BYTES_MAX - 14) + b" HTTP/1.1\r\n"
    assert len(longest) == LINE_BYTES_MAX + 2
    assert placer.place(longest[:-1]) is None
    assert placer.place(longest) == ANY_WORKER
    assert placer.place(b"a" * (LINE_BYTES_MAX + 2)) == ANY_WORKER


def test_the_cache_of_placements_is_bounded(placer: Placer) -> None:
    for number in range(CACHED_MAX + 10):
        placer.place(b"GET /v0/topics/t%d HTTP/1.1\r\n" % number)
    placer.place(b"GET /v0/topics?" + b"x" * 2000 + b" HTTP/1.1\r\n")
    assert len(placer._placements) <= CACHED_MAX
    assert max(map(len, placer._placements)) <= 1024


def test_a_change_of_the_placement_empties_the_cache(tmp_path: Path) -> None:
    words, path = [0, SHARDS, 0, 0, SHARDS], tmp_path / "PLACEMENT.json"
    placer = Placer(IDS, SharedPlacement(words, str(path)))
    line = b"GET /v0/topics/orders HTTP/1.1\r\n"
    owner = placer.place(line)
    assert owner == placer.place(line) == shard_of(topic_id("orders"), SHARDS)
    other = (owner + 1) % SHARDS
    path.write_bytes(encode_placement(Placement(SHARDS).changed({"orders": other})))
    assert placer.place(line) == owner
    words[0] = 1
    assert placer.place(line) == placer.place(line) == other
