"""Every command on the directory of everything, with its server up and down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clients.topic_client import TopicClient
from tests.harness.output.command_run import fingerprint, run_here
from tests.harness.server.everything import Everything, ask, server, snapshots_of, wait_until_synced
from tests.harness.server.everything_fill import KEY, fill
from topicsd.engine.queue.job import IN_FLIGHT
from topicsd.engine.queue.state import leases_of
from topicsd.log.control_frame import Lease
from topicsd.offline.report.job_events import JobEvents

LOOKS = (
    ("inspect",),
    ("inspect", "--json"),
    ("inspect", "--frames"),
    ("inspect", "--frames", "--json"),
    ("inspect", "--checkpoint"),
    ("inspect", "--checkpoint", "--json"),
    ("verify",),
    ("verify", "--json"),
    ("doctor",),
    ("doctor", "--json"),
    ("doctor", "--repair"),
)


@pytest.fixture(scope="module")
def served(everything: Everything, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    """Return a copy with a running server that has leased jobs and has written since its start."""
    copy = everything.copied(tmp_path_factory.mktemp("served"))
    with server(copy.folder) as running:
        api = TopicClient(running.port, KEY)
        fill(api, "c")
        said = ask(api)
        wait_until_synced(copy.folder, api, said)
        yield copy._replace(said=said)


@pytest.fixture(params=["down", "up"])
def directory(request: pytest.FixtureRequest, everything: Everything) -> Everything:
    result: Everything = request.getfixturevalue("served") if request.param == "up" else everything
    return result


@pytest.mark.parametrize("look", LOOKS, ids=" ".join)
def test_every_command_reports_no_problem(
    directory: Everything, everything: Everything, look: tuple[str, ...]
) -> None:
    name, *flags = look
    ran = run_here(name, directory.data, *flags)
    assert ran.code == 0, ran.out[-2000:]
    # The note of `--frames` at the end of a log that is being written.
    assert directory is not everything or not ran.err, ran.err
    assert "WRONG" not in ran.out


def test_nothing_is_written(everything: Everything) -> None:
    before = fingerprint(everything.folder)
    for name, *flags in LOOKS:
        run_here(name, everything.data, *flags)
    assert fingerprint(everything.folder) == before


def test_a_repair_finds_nothing_to_do(everything: Everything, tmp_path: Path) -> None:
    copy = everything.copied(tmp_path)
    ran = run_here("doctor", copy.data, "--repair", "--apply")
    assert (ran.code, ran.err) == (0, ""), ran.out
    assert "all is well" in ran.out


def test_a_repair_refuses_beside_a_server(served: Everything) -> None:
    ran = run_here("doctor", served.data, "--repair", "--apply")
    assert ran.code == 2
    assert "stop the server first" in ran.err


def inspected(directory: Everything) -> dict[str, Any]:
    shards = run_here("inspect", directory.data, "--json").json["shards"]
    return {topic["topic"]: topic for shard in shards for topic in shard["topics"]}


def test_topics_match_the_answers_of_the_server(directory: Everything) -> None:
    topics, said = inspected(directory), directory.said
    assert sorted(topics) == sorted(said.states)
    for name, state in said.states.items():
        if state["config"]["durability"] == "ephemeral":
            assert topics[name]["head_seq"] is None
            continue
        for field in ("head_seq", "earliest_seq", "epoch", "count", "bytes"):
            assert topics[name][field] == state[field], (name, field)
        config = {name: value for name, value in state["config"].items() if name != "durable"}
        assert topics[name]["config"] == config


@pytest.mark.parametrize("flags", [(), ("--json",), ("--checkpoint",), ("--frames",)], ids=" ".join)
def test_each_topic_alone(directory: Everything, flags: tuple[str, ...]) -> None:
    for name in directory.said.states:
        ran = run_here("inspect", directory.data, "--topic", name, *flags)
        is_captured = name[0] == "a"
        if "--checkpoint" in flags and not is_captured:
            continue
        assert ran.code == 0, (name, ran.out[-2000:])


def test_queues_match_the_answers_of_the_server(directory: Everything) -> None:
    topics, seen = inspected(directory), set()
    for name, state in directory.said.states.items():
        said = state.get("queue")
        assert (topics[name]["queue"] is None) == (said is None), name
        if said is None:
            continue
        queue = topics[name]["queue"]
        counts = {field: said.get(field, 0) for field in queue if field not in ("paused", "leases_durable")}
        if not state["config"]["leases_durable"]:
            # Leases and returns with a delay are not in any file.
            assert (
                queue["ready"] + queue["delayed"] == counts["ready"] + counts["in_flight"] + counts["delayed"]
            )
            assert queue["in_flight"] == 0
            assert queue["delayed"] <= counts["delayed"]
            counts = {field: queue[field] for field in ("ready", "in_flight", "delayed")} | {
                field: counts[field] for field in ("blocked", "parked", "dead_lettered")
            }
        assert {field: queue[field] for field in counts} == counts, name
        assert queue["paused"] == state["config"]["paused"]
        seen |= {field for field, count in counts.items() if count}
    assert seen == {"ready", "in_flight", "delayed", "blocked", "parked", "dead_lettered"}


def test_cursors_and_routes_match_the_answers_of_the_server(directory: Everything) -> None:
    topics = inspected(directory)
    for name, said in directory.said.cursors.items():
        fields = ("cursor", "from_seq", "set_ts", "lag_records")
        cursors = [{field: one[field] for field in fields} for one in said]
        assert topics[name]["cursors"] == cursors, name
    routes = {route["name"]: route for topic in topics.values() for route in topic["routes"]}
    assert sorted(routes) == sorted(route["router"] for route in directory.said.routes)
    for route in directory.said.routes:
        shown = routes[route["router"]]
        for field in ("source", "dest", "filter", "forwarded_total"):
            assert shown[field] == route[field], (shown, route)
        assert shown["guarantee"] == route.get("guarantee", "at_least_once")
        if "delivery" in route:
            assert shown["lag"] == route["delivery"]["lag"] > 0
        elif "ring" not in route["router"]:
            assert shown["lag"] == 0
            assert shown["position"] == topics[route["source"]]["head_seq"]


def test_schedules_match_the_answers_of_the_server(directory: Everything) -> None:
    topics = inspected(directory)
    shown = {name: topic["schedules"] for name, topic in topics.items() if topic["schedules"]}
    assert sorted(shown) == sorted(name for name, said in directory.said.schedules.items() if said)
    assert {directory.first.leased, directory.second.leased} <= shown.keys()
    for name, schedules in shown.items():
        fields = ("schedule", "cron", "time_zone", "catch_up", "paused", "last_seq")
        said = [{field: one[field] for field in fields} for one in directory.said.schedules[name]]
        assert [{field: one[field] for field in fields} for one in schedules] == said


def test_text_shows_queues_routes_and_cursors(everything: Everything) -> None:
    text = run_here("inspect", everything.data).out
    for heading in ("QUEUE ", "SCHEDULE ", "ROUTE ", "CURSOR "):
        assert f"\n  {heading}" in text
    names = everything.second
    text = run_here("inspect", everything.data, "--topic", names.leased).out
    assert "queue       4 ready, 4 in flight, 3 delayed" in text
    paused = run_here("inspect", everything.data, "--topic", names.paused).out
    assert "paused: 1 ready, 2 dead lettered" in paused
    route = " ".join(run_here("inspect", everything.data, "--topic", names.across).out.split())
    assert f'from "{names.plain}" to "{names.across}", position 77, lag 0, 54 copies' in route


def test_frames_show_the_events_of_jobs(everything: Everything) -> None:
    names = everything.second
    rows = run_here("inspect", everything.data, "--frames", "--json", "--topic", names.leased).json_lines
    events = [row["event"] for row in rows if "event" in row]
    assert events == ["delayed", "claimed", "acked", "released", "released", "extended", "deleted"]
    rows = run_here("inspect", everything.data, "--frames", "--json", "--topic", names.paused).json_lines
    assert [row["event"] for row in rows if "event" in row] == ["parked", "dead_lettered"]
    text = run_here("inspect", everything.data, "--frames", "--topic", names.leased).out
    assert " acked below=0" in text


def test_an_extension_of_a_lease_in_the_snapshot_is_no_claim(everything: Everything) -> None:
    """The frame of its claim was dropped with the log."""
    topics = [topic for one in snapshots_of(everything) for topic in one.topics]
    (topic,) = [topic for topic in topics if topic.name == everything.first.leased]
    (seq, lease), *_ = leases_of(topic.sections)
    frame = Lease(IN_FLIGHT, [seq], [1], [lease], 1, "worker")
    assert JobEvents().event(topic.topic_id, frame) == "claimed"
    events = JobEvents()
    for snapshot in snapshots_of(everything):
        events.start_from(snapshot)
    assert events.event(topic.topic_id, frame) == "extended"


def test_every_index_is_shown(everything: Everything) -> None:
    files = [path for path in everything.data.rglob("topics/*/*.idx") if path.with_suffix(".data").exists()]
    reports = [run_here("inspect", path, "--json").json for path in files]
    assert {report["sealed"] for report in reports} == {True, False}
    assert any(report["generation"] and not report["records"][1]["size"] for report in reports)
    for path, report in zip(files, reports, strict=True):
        assert report["problem"] == ""
        assert report["data_end"] <= path.with_suffix(".data").stat().st_size
        text = run_here("inspect", path)
        assert text.code == 0
        assert str(report["records"][-1]["offset"]) in text.out.splitlines()[-1]
    flags = {flag for report in reports for row in report["records"] for flag in row["flags"]}
    assert flags == {"tag", "node", "durable", "meta", "bytes"}


def test_a_damaged_index_is_named(everything: Everything, tmp_path: Path) -> None:
    original = next(everything.data.rglob("topics/*/*.idx"))
    path = tmp_path / original.name
    path.write_bytes(original.read_bytes() + b"x")
    ran = run_here("inspect", path)
    assert ran.code == 1
    assert "not a whole number of entries; a start rebuilds the index from .data" in ran.out
    other = tmp_path / "other.idx"
    other.write_bytes(b"")
    ran = run_here("inspect", other)
    assert (ran.code, ran.out) == (2, "")
    assert "must be an index file, such as seg-0000000000000001.idx" in ran.err
