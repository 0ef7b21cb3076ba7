"""Routes: PUT, GET, list and DELETE of `/v0/routers`, through every lane, with one shard and with several."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.harness.clients.h2_client import H2Client
from tests.harness.clients.raw_client import Answer, HttpClient, RawClient
from tests.harness.server.http_server import CODED, H2
from tests.harness.server.whole_server import WholeServer

DEFAULTS = {
    "preserve_node": True,
    "preserve_tag": True,
    "create_dest": True,
    "filter": None,
    "allow_cycle": False,
    "guarantee": "at_least_once",
    "from": "head",
}

pytestmark = pytest.mark.slow


class Routes:
    """A client, whose topics have names that no other test uses."""

    def __init__(self, client: HttpClient, name: str, lane: str = "") -> None:
        self.client = client
        self._lane = lane
        self.name = name

    def topic(self, short: str) -> str:
        return f"{self.name}.{short}"

    def ask(self, method: str, path: str, body: object = None, *fields: str) -> Answer:
        is_chunked = self._lane == CODED and body is not None
        return self.client.finish(self.client.start(method, path, body, *fields, is_chunked=is_chunked))

    def put(self, route: str, source: str, dest: str, **options: Any) -> Answer:
        body = {"source": self.topic(source), "dest": self.topic(dest), **options}
        return self.ask("PUT", self.path(route), body)

    def path(self, route: str) -> str:
        return f"/v0/routers/{quote(self.topic(route))}"

    def made(self, route: str, source: str, dest: str, **options: Any) -> Any:
        answer = self.put(route, source, dest, **options)
        assert answer.status == 201, answer
        return answer.json

    def append(self, topic: str, *records: object) -> None:
        bodies = [one if isinstance(one, dict) else {"data": one} for one in records]
        answer = self.ask("POST", f"/v0/topics/{self.topic(topic)}", {"records": bodies})
        assert answer.status in (200, 201), answer

    def copies(self, topic: str, count: int) -> list[Any]:
        """As many as there are to be, waited for."""
        values: list[Any] = []
        for _ in range(count + 1):
            body = {"from_seq": values[-1]["$seq"] if values else 0, "wait_ms": 5000, "include_tags": True}
            answer = self.ask("POST", f"/v0/topics/{self.topic(topic)}/diff", body).json
            values += answer["records"]
            if len(values) >= count:
                break
        assert len(values) == count, values
        return values

    def is_there(self, topic: str) -> bool:
        return self.ask("GET", f"/v0/topics/{self.topic(topic)}").status == 200

    def listed(self, query: str = "") -> list[str]:
        """Without what their names have in common."""
        routers = self.ask("GET", f"/v0/routers?prefix={self.name}{query}").json["routers"]
        return [one["router"].removeprefix(self.topic("")) for one in routers]


@pytest.fixture(scope="module", params=[1, 2, 5])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    with WholeServer(tmp_path_factory.mktemp("data"), shards=request.param) as running:
        yield running


@pytest.fixture
def routes(server: WholeServer, lane: str, topic: str) -> Iterator[Routes]:
    with H2Client(server.port) if lane == H2 else RawClient(server.port) as client:
        yield Routes(client, topic, lane)


def test_a_put_creates_with_every_default_and_makes_its_topics(routes: Routes) -> None:
    route = routes.made("a>b", "a", "b")
    ends = {"source": routes.topic("a"), "dest": routes.topic("b")}
    performance = route.pop("performance")
    assert list(performance) == ["server_total_ms"]
    assert route == {"router": routes.topic("a>b"), "created": True, **ends, **DEFAULTS}
    assert list(route)[:2] == ["router", "created"]
    for end in ("a", "b"):
        assert routes.is_there(end)
    state = routes.ask("GET", routes.path("a>b")).json
    state.pop("performance")
    assert state == {"router": routes.topic("a>b"), **ends, **DEFAULTS, "forwarded_total": 0}
    (entry,) = routes.ask("GET", f"/v0/routers?prefix={routes.name}").json["routers"]
    assert entry == state


def test_a_second_put_changes_the_options_and_not_where_it_began(routes: Routes) -> None:
    routes.made("r", "a", "b", filter="x", preserve_node=False)
    options = {
        "filter": ["tag", "Glob", "paid.*"],
        "preserve_tag": False,
        "guarantee": "exactly_once",
        "create_dest": False,
        "allow_cycle": True,
    }
    answer = routes.put("r", "a", "b", **options, **{"from": "earliest"})
    assert (answer.status, answer.json["created"]) == (200, False)
    actual = {name: answer.json[name] for name in DEFAULTS}
    assert actual == {**DEFAULTS, **options}
    assert routes.ask("GET", routes.path("r")).json["filter"] == options["filter"]


def test_a_route_is_deleted_once(routes: Routes) -> None:
    routes.made("r", "a", "b")
    answers = [routes.ask("DELETE", routes.path("r")) for _ in range(2)]
    assert [(one.status, one.json["deleted"]) for one in answers] == [(200, True), (200, False)]
    assert list(answers[0].json) == ["router", "deleted", "performance"]
    assert answers[0].json["router"] == routes.topic("r")
    gone = routes.ask("GET", routes.path("r"))
    assert (gone.status, gone.code) == (404, "router_not_found")
    assert routes.listed() == []
    assert routes.is_there("a")
    routes.made("r", "b", "a")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"dest": "b"}, "source"),
        ({"source": "a"}, "dest"),
        ({"source": "a", "dest": "a"}, "dest"),
        ({"source": "a/b", "dest": "b"}, "source"),
        ({"source": "a", "dest": ""}, "dest"),
        ({"source": "a", "dest": "a>b"}, "dest"),
        ({"source": 1, "dest": "b"}, "source"),
        ({"source": "a", "dest": None}, "dest"),
        ({"source": "a", "dest": "b", "filter": ["tag", "Like", "x"]}, "filter"),
        ({"source": "a", "dest": "b", "filter": ["tag", "Glob", "x"]}, "filter"),
        ({"source": "a", "dest": "b", "filter": ["tag", "Glob", "*x*"]}, "filter"),
        ({"source": "a", "dest": "b", "filter": {}}, "filter"),
        ({"source": "a", "dest": "b", "filter": "x\0"}, "filter"),
        ({"source": "a", "dest": "b", "filter": "x" * 257}, "filter"),
        ({"source": "a", "dest": "b", "preserve_node": 1}, "preserve_node"),
        ({"source": "a", "dest": "b", "preserve_tag": "no"}, "preserve_tag"),
        ({"source": "a", "dest": "b", "create_dest": None}, "create_dest"),
        ({"source": "a", "dest": "b", "allow_cycle": 0}, "allow_cycle"),
        ({"source": "a", "dest": "b", "guarantee": "twice"}, "guarantee"),
        ({"source": "a", "dest": "b", "from": "tail"}, "from"),
        ([], "the body"),
        (b"", "source: is required"),
        (b"{", "the body"),
    ],
)
def test_what_is_wrong_is_400_and_named_and_makes_nothing(routes: Routes, body: Any, field: str) -> None:
    if isinstance(body, dict):
        ends = ("source", "dest")
        body = {
            name: routes.topic(value) if name in ends and value in ("a", "b") else value
            for name, value in body.items()
        }
    answer = routes.ask("PUT", routes.path("r"), body)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert field in answer.message
    assert not routes.is_there("a")
    assert routes.listed() == []


def test_an_unknown_field_and_another_kind_of_body_are_refused(routes: Routes) -> None:
    answer = routes.put("r", "a", "b", fliter=["tag", "Eq", "x"])
    assert (answer.status, answer.message) == (400, "fliter: unknown field, did you mean filter?")
    assert routes.listed() == []
    if isinstance(routes.client, RawClient):
        answer = routes.client.ask("PUT", routes.path("s"), b"{}", content_type="text/plain")
        assert (answer.status, answer.code) == (415, "unsupported_media_type")


@pytest.mark.parametrize("name", ["a%20b", "-r", "a%2Fb", "x" * 256, "%C3%A9"])
def test_a_name_that_is_none_is_400_for_every_method(routes: Routes, name: str) -> None:
    for method in ("PUT", "GET", "DELETE"):
        body = {"source": routes.topic("a"), "dest": routes.topic("b")} if method == "PUT" else None
        answer = routes.ask(method, f"/v0/routers/{name}", body)
        assert (answer.status, answer.code, answer.json["error"]["detail"]) == (
            400,
            "invalid_request",
            {"field": "router"},
        )
    assert not routes.is_there("a")


def test_another_method_is_405_with_those_that_there_are(routes: Routes) -> None:
    for path, allow in (("/v0/routers", "GET, HEAD"), ("/v0/routers/r", "DELETE, GET, HEAD, PUT")):
        answer = routes.ask("POST", path, {})
        assert (answer.status, answer.fields["allow"]) == (405, allow)


def refused(answer: Answer, code: str, detail: dict[str, object]) -> bool:
    status = {"throttled": 429}.get(code, 409)
    return (answer.status, answer.code, answer.json["error"]["detail"]) == (status, code, detail)


def test_a_second_way_into_a_topic_is_refused(routes: Routes) -> None:
    routes.made("r", "a", "b")
    detail = {"reason": "router_dest_fan_in", "router": routes.topic("r")}
    for source in ("new", "a"):
        assert refused(routes.put("s", source, "b"), "topic_exists_incompatible", detail)
    assert not routes.is_there("new")
    routes.ask("DELETE", routes.path("r"))
    routes.made("s", "new", "b")


def test_a_route_is_not_pointed_elsewhere(routes: Routes) -> None:
    routes.made("r", "a", "b")
    detail = {"reason": "router_repoint_forbidden", "router": routes.topic("r")}
    for source, dest in (("a", "c"), ("c", "b"), ("b", "a")):
        assert refused(routes.put("r", source, dest), "topic_exists_incompatible", detail)
    assert not routes.is_there("c")


def test_a_cycle_is_refused_unless_it_is_allowed(routes: Routes) -> None:
    for source, dest in ("ab", "bc", "cd"):
        routes.made(f"{source}>{dest}", source, dest)
    assert refused(routes.put("r", "b", "a"), "router_cycle", {"cycle": [routes.topic(one) for one in "aba"]})
    cycle = {"cycle": [routes.topic(one) for one in "abcda"]}
    assert refused(routes.put("r", "d", "a"), "router_cycle", cycle)
    routes.made("r", "d", "a", allow_cycle=True)
    # It is one now: who closed it may not take that back, the others may be put again as they are.
    assert refused(routes.put("r", "d", "a"), "router_cycle", cycle)
    assert routes.put("a>b", "a", "b").status == 200
    routes.made("out", "a", "e")


def test_a_destination_that_is_not_to_be_made_has_to_be_there(routes: Routes) -> None:
    answer = routes.put("r", "a", "b", create_dest=False)
    assert (answer.status, answer.code) == (404, "topic_not_found")
    assert routes.topic("b") in answer.message
    assert not routes.is_there("a")
    routes.append("b", 1)
    routes.made("r", "a", "b", create_dest=False)
    assert routes.is_there("a")


def test_routes_are_listed_in_name_order_by_prefix_and_ends_in_pages(routes: Routes) -> None:
    for number in range(7):
        routes.made(f"r>{number}", "a" if number % 2 else "b", f"d{number}")
    names = [f"r>{number}" for number in range(7)]
    assert routes.listed() == names
    assert routes.listed(f"&source={routes.topic('a')}") == names[1::2]
    assert routes.listed(f"&dest={routes.topic('d4')}") == [names[4]]
    assert routes.listed(f"&dest={routes.topic('d4')}&source={routes.topic('a')}") == []
    assert routes.listed(".r%3E5") == [names[5]]
    for page_size in (1, 3, 1000):
        seen, cursor = [], ""
        while cursor is not None:
            query = f"prefix={routes.name}&page_size={page_size}&cursor={cursor}"
            page = routes.ask("GET", f"/v0/routers?{query}").json
            seen += [one["router"].removeprefix(routes.topic("")) for one in page["routers"]]
            cursor = page.get("next_cursor")
        assert seen == names
    for query in ("page_size=x", "cursor=%21", "partial=perhaps", "source=a%20b", "dest=%00"):
        answer = routes.ask("GET", f"/v0/routers?{query}")
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert answer.message.startswith(query.partition("=")[0])


def test_any_connection_asks_for_a_route_and_about_it(server: WholeServer, topic: str) -> None:
    openers = ["/v0/health", *(f"/v0/topics/{server.topic_of(n, 'o')}" for n in range(server.shards))]
    for number, opener in enumerate(openers):
        with RawClient(server.port) as client:
            routes = Routes(client, f"{topic}.{number}")
            for path in (opener, "/v0/health", opener):
                client.ask("GET", path)
            routes.made("r", "a", "b")
            assert routes.ask("GET", routes.path("r")).status == 200
            assert routes.listed() == ["r"]
            assert routes.ask("HEAD" if number % 2 else "DELETE", routes.path("r")).status == 200


# -- what a route does -------------------------------------------------------------------------------------


def test_what_is_appended_from_now_on_is_copied_with_all_that_it_has(routes: Routes) -> None:
    routes.append("a", "before")
    routes.made("r", "a", "b")
    record = {"data": {"x": [1, None]}, "tag": "t", "node": "n", "meta": {"k": 1}}
    routes.append("a", record, "plain")
    copies = routes.copies("b", 2)
    assert [one["data"] for one in copies] == [record["data"], "plain"]
    assert (copies[0]["$tag"], copies[0]["$node"], copies[0]["meta"]) == ("t", "n", {"k": 1})
    assert [one["$seq"] for one in copies] == [1, 2]
    assert set(copies[1]) == {"$seq", "$ts", "data"}
    assert routes.ask("GET", routes.path("r")).json["forwarded_total"] == 2


def test_earliest_is_all_that_is_there(routes: Routes) -> None:
    routes.append("a", 1, 2, 3)
    routes.made("r", "a", "b", **{"from": "earliest"})
    assert [one["data"] for one in routes.copies("b", 3)] == [1, 2, 3]


def test_a_filter_copies_what_it_matches_and_fields_are_left_out_when_asked(routes: Routes) -> None:
    routes.made("eq", "a", "b", filter="x", preserve_tag=False)
    routes.made("glob", "a", "c", filter=["tag", "Glob", "x*"], preserve_node=False)
    routes.append("a", *({"data": tag, "tag": tag, "node": "n"} for tag in ("x", "y", "xy", "x")))
    assert [(one["data"], one.get("$tag"), one["$node"]) for one in routes.copies("b", 2)] == [
        ("x", None, "n"),
        ("x", None, "n"),
    ]
    assert [(one["data"], one["$tag"], one.get("$node")) for one in routes.copies("c", 3)] == [
        ("x", "x", None),
        ("xy", "xy", None),
        ("x", "x", None),
    ]


def test_queues_may_be_at_both_ends_of_a_chain(routes: Routes) -> None:
    for queue in ("a", "c"):
        routes.ask("PUT", f"/v0/topics/{routes.topic(queue)}", {"type": "queue"})
    routes.made("in", "a", "b")
    routes.made("out", "b", "c")
    routes.append("a", "job")
    assert [one["data"] for one in routes.copies("c", 1)] == ["job"]
    for queue in ("a", "c"):
        claim = routes.ask("POST", f"/v0/topics/{routes.topic(queue)}/claim", {"node": "w"}).json
        assert [one["data"] for one in claim["claimed"]] == ["job"]


def test_what_goes_in_a_circle_ends_after_sixteen_hops(routes: Routes) -> None:
    routes.made("ab", "a", "b")
    routes.made("ba", "b", "a", allow_cycle=True)
    routes.append("a", "round")
    # Each hop counts, also by the route that was made before there was a circle.
    counts = {"b": 8, "a": 9}
    for topic, count in counts.items():
        assert [one["data"] for one in routes.copies(topic, count)] == ["round"] * count
    for topic, count in counts.items():
        ended = {"from_seq": count, "wait_ms": 300}
        assert routes.ask("POST", f"/v0/topics/{routes.topic(topic)}/diff", ended).json["records"] == []


def test_what_a_route_has_come_to_is_gone_when_it_is_deleted(routes: Routes) -> None:
    routes.made("r", "a", "b")
    routes.append("a", 1)
    routes.copies("b", 1)
    routes.ask("DELETE", routes.path("r"))
    routes.append("a", 2)
    routes.made("r", "a", "b")
    routes.append("a", 3)
    assert [one["data"] for one in routes.copies("b", 2)] == [1, 3]


# -- topics that are deleted -------------------------------------------------------------------------------


def test_deleting_a_topic_ends_the_routes_from_it_and_into_it(routes: Routes) -> None:
    for source, dest in ("ab", "bc", "bd", "xy"):
        routes.made(f"{source}>{dest}", source, dest)
    answer = routes.ask("DELETE", f"/v0/topics/{routes.topic('b')}")
    assert answer.json["routers_removed"] == [routes.topic(one) for one in ("a>b", "b>c", "b>d")]
    assert routes.listed() == ["x>y"]
    again = routes.ask("DELETE", f"/v0/topics/{routes.topic('b')}").json
    assert (again["deleted"], again["routers_removed"]) == (False, [])
    # A topic of that name is another one, to which they mean nothing.
    routes.append("b", 1)
    routes.append("a", 2)
    routes.made("b>c", "b", "c", **{"from": "earliest"})
    routes.made("a>b", "a", "b")
    assert [one["data"] for one in routes.copies("c", 1)] == [1]


def test_a_topic_that_is_not_deleted_keeps_its_routes(routes: Routes) -> None:
    routes.made("r", "a", "b")
    routes.append("a", 1)
    answer = routes.ask("DELETE", f"/v0/topics/{routes.topic('a')}?if_empty=true")
    assert (answer.status, answer.code) == (409, "topic_not_empty")
    assert routes.listed() == ["r"]


# -- many at once, caps, keys ------------------------------------------------------------------------------


def at_once(port: int, what: list[Callable[[RawClient], Answer]]) -> list[Answer]:
    """Each on a connection of its own, begun together."""
    answers: list[Answer | None] = [None] * len(what)
    barrier = threading.Barrier(len(what))

    def run(number: int) -> None:
        with RawClient(port) as client:
            client.ask("GET", "/v0/health")
            barrier.wait()
            answers[number] = what[number](client)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(what))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return [one for one in answers if one is not None]


def test_of_many_at_once_that_exclude_each_other_one_is_made(server: WholeServer, topic: str) -> None:
    for number in range(5):
        name = f"{topic}.{number}"

        def into(source: str, dest: str, name: str = name) -> Callable[[RawClient], Answer]:
            return lambda client: Routes(client, name).put(f"{source}>{dest}", source, dest)

        answers = at_once(server.port, [into(f"s{n}", "d") for n in range(6)])
        assert sorted(one.status for one in answers) == [201] + 5 * [409]
        ring = "abcdef"
        answers = at_once(server.port, [into(one, ring[n - 1]) for n, one in enumerate(ring)])
        assert sorted(one.status for one in answers) == 5 * [201] + [409]
        with RawClient(server.port) as client:
            routes = Routes(client, name)
            assert len(routes.listed()) == 6
            assert sum(routes.is_there(f"s{n}") for n in range(6)) == 1


@pytest.mark.parametrize("shards", [1, 3])
def test_a_route_that_a_cap_refuses_makes_no_topic(tmp_path: Path, shards: int) -> None:
    flags = ("--max-routers=2", "--max-topics=5")
    with WholeServer(tmp_path, *flags, shards=shards) as server, RawClient(server.port) as client:
        routes = Routes(client, "t")
        routes.made("ab", "a", "b")
        routes.made("cd", "c", "d")
        detail = {"limit": "max_routers", "max": 2, "retry_after_ms": 1000}
        full = routes.put("ef", "e", "f")
        assert refused(full, "throttled", detail)
        assert full.fields["retry-after"] == "1"
        assert routes.put("ab", "a", "b", filter="x").status == 200
        routes.ask("DELETE", routes.path("cd"))
        # There is room for one topic more, and it would take two.
        assert refused(
            routes.put("ef", "e", "f"), "throttled", {"limit": "max_topics", "max": 5, "retry_after_ms": 1000}
        )
        assert [routes.is_there(one) for one in "ef"] == [False, False]
        routes.made("ae", "a", "e")
        assert routes.listed() == ["ab", "ae"]


ALL, ADMIN, SOME, READER = (f"a-key-of-some-length-{kind}" for kind in ("all", "admin", "some", "reader"))
KEYS = f"{ALL},{ADMIN}:admin,{SOME}::mine.,{READER}:read:mine."


def test_keys_need_their_scopes_and_are_for_names_and_both_ends(tmp_path: Path) -> None:
    with WholeServer(tmp_path, environ={"TOPICS_API_KEYS": KEYS}) as server, RawClient(server.port) as client:

        def ask(key: str, method: str, route: str, source: str = "", dest: str = "") -> tuple[int, str]:
            body = {"source": source, "dest": dest} if source else None
            path = f"/v0/routers/{route}" if route else "/v0/routers"
            answer = client.ask(method, path, body, f"authorization: Bearer {key}")
            return answer.status, answer.code if answer.status >= 400 else ""

        forbidden = (403, "forbidden")
        assert ask("unknown-key", "PUT", "r", "a", "b") == (401, "unauthorized")
        assert ask(READER, "PUT", "mine.r", "mine.a", "mine.b") == forbidden
        for route, source, dest in (
            ("r", "mine.a", "mine.b"),
            ("mine.r", "theirs", "mine.b"),
            ("mine.r", "mine.a", "theirs"),
        ):
            assert ask(SOME, "PUT", route, source, dest) == forbidden
        assert client.ask("GET", "/v0/topics", None, f"authorization: Bearer {ALL}").json["topics"] == []
        assert ask(SOME, "PUT", "mine.r", "mine.a", "mine.b") == (201, "")
        assert ask(ADMIN, "PUT", "theirs.r", "theirs.a", "theirs.b") == (201, "")
        assert ask(ADMIN, "GET", "theirs.r") == ask(ADMIN, "DELETE", "theirs.r") == forbidden
        for key, names in ((ALL, ["mine.r", "theirs.r"]), (SOME, ["mine.r"]), (READER, ["mine.r"])):
            routers = client.ask("GET", "/v0/routers", None, f"authorization: Bearer {key}").json["routers"]
            assert [one["router"] for one in routers] == names
        for route in ("theirs.r", "absent"):
            assert ask(READER, "GET", route) == ask(SOME, "DELETE", route) == forbidden
        assert ask(READER, "GET", "mine.r") == (200, "")
        assert ask(READER, "DELETE", "mine.r") == forbidden
        assert ask(SOME, "DELETE", "mine.r") == (200, "")
