"""Watch sessions of a server of several shards: where they live, how they are found, and that they stay."""

from __future__ import annotations

import base64
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clients.event_client import Event, EventClient
from tests.harness.clients.raw_client import Answer, RawClient, request_bytes
from tests.harness.server.whole_server import WholeServer

SHARDS = 3
RECORD = b'{"records":[{"data":1}]}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    with WholeServer(tmp_path_factory.mktemp("watched"), shards=SHARDS) as running:
        for name in topics_of(running):
            append(running, name)
        yield running


def topics_of(server: WholeServer) -> list[str]:
    """Two of each shard, in the order of the shards."""
    return [server.topic_of(shard, prefix) for shard in range(server.shards) for prefix in ("a", "b")]


def append(server: WholeServer, name: str) -> None:
    with RawClient(server.port) as client:
        assert client.ask("POST", f"/v0/topics/{name}", RECORD).status in (200, 201)


def ask(server: WholeServer, *names: str, opener: str = "/v0/health") -> Answer:
    """On a connection that begins with another request."""
    with RawClient(server.port) as client:
        client.ask("GET", opener)
        return client.ask("POST", "/v0/watch", {"topics": {name: {} for name in names}})


def made(server: WholeServer, *names: str) -> str:
    answer = ask(server, *names)
    assert answer.status == 200, answer
    return str(answer.json["wid"])


def home_of(wid: str) -> int:
    return int.from_bytes(base64.urlsafe_b64decode(wid)[:2])


def seqs_of(event: Event) -> dict[str, int]:
    seqs: dict[str, int] = json.loads(base64.urlsafe_b64decode(event.id + "=="))
    return seqs


def look(server: WholeServer, wid: str, *fields: str) -> Answer:
    with RawClient(server.port) as client:
        return client.ask("HEAD", f"/v0/watch/{wid}", None, *fields)


def metric(server: WholeServer, name: str) -> float:
    with RawClient(server.port) as client:
        lines = client.ask("GET", "/v0/metrics").body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((name + "{", name + " ")))


# -- where it lives ------------------------------------------------------------------------------------------


def test_a_position_past_the_head_is_refused_by_every_shard(server: WholeServer) -> None:
    for name in topics_of(server):
        with RawClient(server.port) as client:
            client.ask("GET", "/v0/health")
            epoch = client.ask("GET", f"/v0/topics/{name}").json["epoch"]
            place = {"from_seq": 2, "epoch": epoch}
            read = client.ask("POST", f"/v0/topics/{name}/diff", place)
            watched = client.ask("POST", "/v0/watch", {"topics": {name: place}})
        for answer in (read, watched):
            error = answer.json["error"]
            assert (answer.status, error["code"]) == (409, "position_past_head")
            assert error["detail"] == {"topic": name, "head_seq": 1, "epoch": epoch}


def test_its_home_is_the_shard_of_most_of_its_topics(server: WholeServer) -> None:
    a0, _, a1, b1, a2, b2 = topics_of(server)
    for names, home in (([a0], 0), ([a1], 1), ([a0, a2, b2], 2), ([a1, b1, a0, a2], 1)):
        assert home_of(made(server, *names)) == home


def test_between_equals_sessions_are_spread(server: WholeServer) -> None:
    a0, _, a1, _, a2, _ = topics_of(server)
    before = metric(server, "topics_watch_sessions")
    assert before >= 0
    homes = [home_of(made(server, a0, a1, a2)) for _ in range(9 * SHARDS)]
    assert set(homes) == set(range(SHARDS))


def test_any_connection_asks_for_one_and_hears_of_all_shards(server: WholeServer) -> None:
    names = topics_of(server)
    answers: list[Any] = []
    for opener in ("/v0/health", *(f"/v0/topics/{name}" for name in names)):
        answer = ask(server, *names, opener=opener)
        assert answer.status == 200
        answers.append(answer.json["topics"])
    assert list(answers[0]) == names
    assert all(one == answers[0] for one in answers)
    for opener in ("/v0/health", f"/v0/topics/{names[2]}"):
        answer = ask(server, names[0], "missing", names[4], opener=opener)
        assert (answer.status, answer.code) == (404, "topic_not_found")


# -- how it is found -----------------------------------------------------------------------------------------


def test_a_stream_begins_on_any_connection(server: WholeServer) -> None:
    names = topics_of(server)
    wid = made(server, *names)
    for opener in ("/v0/health", *(f"/v0/topics/{name}" for name in names)):
        with EventClient(server.port, opener) as stream:
            stream.read_answer()
            # Also behind a request that is not answered yet.
            for ahead in (b"", request_bytes("GET", opener)):
                stream.send(ahead + request_bytes("HEAD", f"/v0/watch/{wid}"))
                if ahead:
                    stream.read_answer()
                assert stream.read_answer("HEAD").status == 200
            stream.send(request_bytes("GET", f"/v0/watch/{wid}"))
            stream.begin()
    with EventClient(server.port, f"/v0/watch/{made(server, *names)}") as stream:
        records = stream.begin().records(len(names))
        assert sorted(name for name, _ in records) == sorted(names)
        append(server, names[-1])
        assert stream.records(1) == [(names[-1], 2)]


def test_a_request_for_a_stream_may_come_in_chunks_on_a_connection_of_another_shard(
    server: WholeServer,
) -> None:
    a0, _, a1, *_ = topics_of(server)
    wid = made(server, a1)
    with EventClient(server.port, f"/v0/topics/{a0}") as stream:
        stream.read_answer()
        stream.send(request_bytes("GET", f"/v0/watch/{wid}", b"{}", is_chunked=True))
        assert stream.begin().records(1) == [(a1, 1)]


def test_an_unknown_session_is_refused_alike_everywhere(server: WholeServer) -> None:
    wid = made(server, topics_of(server)[0])
    raw = base64.urlsafe_b64decode(wid)
    ended = [base64.urlsafe_b64encode(bytes([0, shard]) + raw[2:8] + bytes(16)) for shard in range(SHARDS)]
    foreign = base64.urlsafe_b64encode(raw[:2] + bytes(6) + raw[8:])
    beyond = base64.urlsafe_b64encode(bytes([0, SHARDS]) + raw[2:])
    with RawClient(server.port) as kept:
        for expected, wids in ((410, [*ended, beyond]), (404, [foreign, b"w", raw.hex().encode()])):
            for one in wids:
                target = f"/v0/watch/{one.decode()}"
                with RawClient(server.port) as fresh:
                    assert fresh.ask("GET", target).status == kept.ask("GET", target).status == expected
        kept.ask("GET", "/v0/health")
        assert kept.ask("DELETE", f"/v0/watch/{wid}").status == 405


def test_what_crosses_the_link_is_for_the_same_key_and_cursor(tmp_path: Path) -> None:
    """In chunks, so that the worker reads their bodies in parts."""
    keys = "key-of-everybody,key-of-some::a|b,key-of-none::c"
    with WholeServer(tmp_path, shards=SHARDS, environ={"TOPICS_API_KEYS": keys}) as server:
        here, there = server.topic_of(0, "a"), server.topic_of(1, "b")
        fields = {key: f"authorization: Bearer key-of-{key}" for key in ("everybody", "some", "none")}
        with RawClient(server.port) as client:
            for _ in range(3):
                client.ask("POST", f"/v0/topics/{there}", RECORD, fields["some"])
            body = {"topics": {there: {}}}
            assert client.ask("POST", "/v0/watch", body, fields["none"]).status == 403
            wid = client.ask("POST", "/v0/watch", body, fields["some"]).json["wid"]
        with EventClient(server.port, f"/v0/topics/{here}", fields["some"]) as stream:
            stream.read_answer()

            def request_for(method: str, *more: str) -> bytes:
                return request_bytes(method, f"/v0/watch/{wid}", b"{}", *more, is_chunked=True)

            for key, status in (("everybody", 403), ("none", 403), ("some", 200)):
                stream.send(request_for("HEAD", fields[key]))
                assert stream.read_answer("HEAD").status == status
            stream.send(request_for("GET", fields["some"], "accept: text/html"))
            assert stream.read_answer().status == 406
            stream.send(request_for("GET", fields["some"], "last-event-id: ???"))
            assert stream.read_answer().status == 400
            stream.send(request_for("GET", fields["some"]))
            assert stream.begin().records(3) == [(there, 1), (there, 2), (there, 3)]
        cursor = base64.urlsafe_b64encode(json.dumps({there: 1}).encode()).decode().rstrip("=")
        with EventClient(server.port, f"/v0/topics/{here}", fields["some"]) as stream:
            stream.read_answer()
            stream.send(request_for("GET", fields["some"], f"last-event-id: {cursor}"))
            assert stream.begin().records(2) == [(there, 2), (there, 3)]


# -- that it stays -------------------------------------------------------------------------------------------


def test_a_session_outlives_its_worker_which_is_503_meanwhile(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=SHARDS) as server:
        names = topics_of(server)
        for name in names:
            append(server, name)
        wids = [made(server, names[2], names[3], names[0]) for _ in range(3)]
        assert {home_of(wid) for wid in wids} == {1}
        with EventClient(server.port, f"/v0/watch/{wids[0]}") as stream:
            stream.begin()
            # The first record of each, and then that nothing is behind.
            while sum(seqs_of(event := stream.next()).values()) < 3:
                pass
            last_id = event.id
            server.a_worker(1).signal(signal.SIGKILL)
            statuses = set()

            def is_back() -> bool:
                answer = look(server, wids[0])
                statuses.add(answer.status)
                if answer.status == 503:
                    assert int(answer.fields["retry-after"]) >= 1
                return answer.status == 200

            server.wait_for(is_back, "the session is there again")
            assert statuses <= {200, 503}
        assert [look(server, wid).status for wid in wids] == [200] * 3
        append(server, names[3])
        with EventClient(server.port, f"/v0/watch/{wids[0]}", f"last-event-id: {last_id}") as stream:
            assert stream.begin().records(1) == [(names[3], 2)]
        server.wait_for(lambda: metric(server, "topics_watch_sessions") == 3, "they are counted")


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_session_outlives_the_server(tmp_path: Path, ending: str) -> None:
    with WholeServer(tmp_path, shards=SHARDS) as server:
        names = topics_of(server)
        for name in names:
            append(server, name)
        wids = [made(server, name) for name in names]
        if ending == "stop":
            assert server.stop() == 0
        else:
            server.kill()
        server.start()
        for name, wid in zip(names, wids, strict=True):
            with EventClient(server.port, f"/v0/watch/{wid}") as stream:
                assert stream.begin().records(1) == [(name, 1)]


def test_a_session_is_found_through_every_acceptor(tmp_path: Path) -> None:
    with WholeServer(tmp_path, "--fronts=2", shards=SHARDS) as server:
        names = topics_of(server)
        for name in names:
            append(server, name)
        for name in names * 3:
            with EventClient(server.port, f"/v0/watch/{made(server, name)}") as stream:
                assert stream.begin().records(1) == [(name, 1)]


def test_a_stop_ends_streams_with_a_word(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=SHARDS) as server:
        name = topics_of(server)[0]
        append(server, name)
        with EventClient(server.port, f"/v0/watch/{made(server, name)}") as stream:
            stream.begin().records(1)
            assert server.stop() == 0
            while (event := stream.next()).name != "error":
                pass
            assert (event.data["code"], bool(event.id)) == ("shutting_down", True)


def test_a_shard_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=SHARDS) as server:
        names = topics_of(server)
        for name in names:
            append(server, name)
        wid = made(server, names[2])
        stopped = server.a_worker(1)
        stopped.signal(signal.SIGSTOP)
        answers = []

        def is_refused() -> bool:
            answers.append(ask(server, names[0], names[1], names[2]))
            return answers[-1].status == 503

        server.wait_for(is_refused, "the shard is missed")
        assert answers[-1].code == "not_ready"
        assert answers[-1].json["error"]["detail"]["shard"] == 1
        assert ask(server, names[0]).status == 200
        assert look(server, wid).status == 503
        stopped.signal(signal.SIGKILL)
        server.wait_for_shard(1)
        server.wait_for(lambda: look(server, wid).status == 200, "the session is there again")
        assert ask(server, names[0], names[1], names[2]).status == 200


# -- caps ----------------------------------------------------------------------------------------------------


def test_sessions_are_counted_over_all_shards(tmp_path: Path) -> None:
    environ = {"TOPICS_MAX_WATCH_SESSIONS": "7"}
    with WholeServer(tmp_path, shards=SHARDS, environ=environ) as server:
        names = topics_of(server)
        for name in names:
            append(server, name)
        statuses: list[int] = []

        def make(name: str) -> None:
            for _ in range(4):
                statuses.append(ask(server, name).status)
                # What is refused for another reason takes nothing away.
                assert ask(server, name, "missing").status in (404, 429)

        threads = [threading.Thread(target=make, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # What is being refused counts for as long as it is not.
        while (answer := ask(server, names[0])).status == 200:
            statuses.append(200)
        assert statuses.count(200) == 7
        assert set(statuses) == {200, 429}
        assert answer.json["error"]["detail"]["limit"] == "max_watch_sessions"
        server.a_worker(0).signal(signal.SIGKILL)
        assert ask(server, names[2]).status in (429, 503)
        server.wait_for_shard(0)
        server.wait_for(lambda: ask(server, names[2]).status == 429, "the cap is known again")


def test_streams_are_counted_over_all_shards_and_released_by_a_worker_that_dies(tmp_path: Path) -> None:
    environ = {"TOPICS_MAX_SSE_CONNECTIONS": "2"}
    with WholeServer(tmp_path, shards=SHARDS, environ=environ) as server:
        names = topics_of(server)
        for name in names:
            append(server, name)
        wids = [made(server, name) for name in names]
        with (
            EventClient(server.port, f"/v0/watch/{wids[0]}") as first,
            EventClient(server.port, f"/v0/watch/{wids[2]}") as second,
        ):
            first.begin()
            second.begin()
            server.wait_for(lambda: metric(server, "topics_sse_connections") == 2, "they are counted")
            with RawClient(server.port) as client:
                answer = client.ask("GET", f"/v0/watch/{wids[4]}")
            assert (answer.status, answer.json["error"]["detail"]["limit"]) == (429, "max_sse_connections")
            # A stream that takes over needs no room.
            with EventClient(server.port, f"/v0/watch/{wids[2]}") as other:
                other.begin()
                server.a_worker(0).signal(signal.SIGKILL)

                def has_room() -> bool:
                    with EventClient(server.port, f"/v0/watch/{wids[4]}") as third:
                        return third.read_head().startswith("HTTP/1.1 200")

                server.wait_for(has_room, "the stream of the worker that died is released")
        server.wait_for_shard(0)
        for wid in wids * 3:
            server.wait_for(lambda wid=wid: _opens(server, wid), "streams that end make room")  # type: ignore[misc]


def _opens(server: WholeServer, wid: str) -> bool:
    with EventClient(server.port, f"/v0/watch/{wid}") as stream:
        return stream.read_head().startswith("HTTP/1.1 200")


def test_a_place_by_time_or_from_the_end_is_found_in_every_shard(server: WholeServer) -> None:
    names = [server.topic_of(shard, "sought") for shard in range(SHARDS)]
    for name in names:
        append(server, name)
        append(server, name)
    for place, seq in (({"from_ts": 0}, 0), ({"last": 1}, 1), ({"from_ts": 1 << 60}, 2)):
        with RawClient(server.port) as client:
            body = {"topics": dict.fromkeys(names, place)}
            answer = client.ask("POST", "/v0/watch", body)
        assert [answer.json["topics"][name]["from_seq"] for name in names] == [seq] * SHARDS
