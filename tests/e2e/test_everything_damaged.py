"""A flipped byte in each kind of file of the directory of everything is reported and repaired."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from shared.ipc.placement import PLACEMENT_NAME
from tests.harness.clients.topic_client import TopicClient
from tests.harness.output.command_run import run_here
from tests.harness.server.everything import Everything, ask, server, snapshots_of
from tests.harness.server.everything_fill import KEY
from tests.harness.shard.data_dirs import flip
from topicsd.disk.layout import LAYOUT_NAME, shard_paths, topic_dir_name
from topicsd.segment.entry import SegmentEntry, SegmentName


def segments(
    everything: Everything, suffix: str, is_right: Callable[[SegmentEntry], bool]
) -> list[tuple[Path, SegmentName]]:
    """Return path and name of this kind of file for the matching segments."""
    paths = []
    for snapshot in snapshots_of(everything):
        for topic in snapshot.topics:
            for entry in topic.segments:
                if not is_right(entry):
                    continue
                name = SegmentName(topic.topic_id, topic.epoch, entry.first_seq, entry.generation)
                path = Path(shard_paths(str(everything.data), snapshot.head.shard).root, name.key(suffix))
                if entry.tier == "cold" and suffix == ".data":
                    path = everything.cold / (entry.object_stem + suffix)
                if path.exists():
                    paths.append((path, name))
    return paths


def a_segment(suffix: str, is_right: Callable[[SegmentEntry], bool]) -> Callable[[Everything], Path]:
    return lambda everything: segments(everything, suffix, is_right)[0][0]


def in_shard(pattern: str) -> Callable[[Everything], Path]:
    """Return a function for the newest file of a pattern in shard 0."""
    return lambda everything: sorted(everything.data.glob(f"shards/00/{pattern}"))[-1]


class Damage(NamedTuple):
    file: Callable[[Everything], Path]
    offset: int
    level: str
    repairs: tuple[str, ...] = ()
    """What has to be said for a repair."""


KINDS = {
    "log": Damage(in_shard("wal/wal-*.log"), 5000, "stops"),
    "CURRENT": Damage(in_shard("wal/CURRENT"), 20, "harmless"),
    "snapshot": Damage(in_shard("meta/snapshot.*"), 500, "harmless"),
    "manifest": Damage(in_shard("meta/MANIFEST.json"), 200, "harmless"),
    "layout": Damage(lambda everything: everything.data / LAYOUT_NAME, 60, "layout"),
    "sealed .data": Damage(
        a_segment(".data", lambda one: one.is_sealed and one.tier == "hot" and one.live_count > 10),
        400,
        "loss",
    ),
    "active .data": Damage(a_segment(".data", lambda one: not one.is_sealed and one.count > 2), 150, "loss"),
    "cold .data": Damage(a_segment(".data", lambda one: one.tier == "cold"), 400, "loss"),
    "sealed .idx": Damage(a_segment(".idx", lambda one: one.is_sealed), 30, "harmless"),
    "active .idx": Damage(a_segment(".idx", lambda one: not one.is_sealed), 4, "harmless"),
    ".tags": Damage(a_segment(".tags", lambda one: one.has_tags), 40, "harmless"),
    ".del": Damage(a_segment(".del", lambda one: one.dead_count > 0), 40, "stops", ("--revive-deleted",)),
}


@pytest.fixture
def copy(everything: Everything, tmp_path: Path) -> Everything:
    return everything.copied(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_byte_is_found_and_repaired(copy: Everything, kind: str) -> None:
    damage = KINDS[kind]
    path = damage.file(copy)
    flip(path, damage.offset)
    cold = f"--cold-dir={copy.cold}"

    verified = run_here("verify", copy.data, cold)
    assert verified.code == 1
    assert path.name in verified.out + verified.err
    for look in ((), ("--json",), ("--frames",), ("--checkpoint",)):
        ran = run_here("inspect", copy.data, *look, cold)
        assert ran.code in (0, 1)
        assert "Traceback" not in ran.err

    report = run_here("doctor", copy.data, "--json", cold).json
    assert not report["is_fine"]
    levels = [one["level"] for shard in report["shards"] for one in shard["findings"]]
    assert levels == [] if damage.level == "layout" else damage.level in levels
    assert (report["layout"] is not None) == (damage.level == "layout")

    apply = ("doctor", copy.data, "--repair", "--apply", cold)
    if damage.repairs:
        assert run_here(*apply).code == 1
    ran = run_here(*apply, *damage.repairs)
    # A server repairs harmless damage itself if nothing else is wrong.
    assert ran.code == 0 or "harmless" in ran.out, ran.out
    assert all(shard["starts"] for shard in run_here("doctor", copy.data, "--json", cold).json["shards"])


def test_damage_beside_a_server_is_found(copy: Everything) -> None:
    kinds = ("sealed .data", "active .data", "cold .data", "sealed .idx", "active .idx", ".tags", "manifest")
    paths = [(KINDS[kind].file(copy), KINDS[kind].offset) for kind in kinds]
    with server(copy.folder):
        for path, offset in paths:
            flip(path, offset)
        for command in ("verify", "doctor"):
            ran = run_here(command, copy.data, f"--cold-dir={copy.cold}")
            assert (ran.code, ran.err) == (1, "")
            for path, _ in paths:
                assert path.name in ran.out
        assert run_here("inspect", copy.data).code in (0, 1)


def test_damage_of_an_active_segment_is_reported_with_its_range(copy: Everything) -> None:
    is_active: Callable[[SegmentEntry], bool] = lambda one: not one.is_sealed and one.count > 2  # noqa: E731
    path, name = segments(copy, ".data", is_active)[0]
    index = run_here("inspect", path.with_suffix(".idx"), "--json").json
    row = next(one for one in index["records"][1:] if one["size"])
    flip(path, row["offset"] + 45)
    for command in ("verify", "doctor"):
        shards = run_here(command, copy.data, "--json").json["shards"]
        findings = [
            one for shard in shards for one in shard["problems" if command == "verify" else "findings"]
        ]
        (finding,) = [one for one in findings if one["seq"] is not None]
        assert finding["file"] == name.key(".data")
        assert (finding["offset"], finding["seq"]) == (row["offset"], row["seq"])
        assert finding["level"] == "loss"
        assert f"seq {row['seq']} cannot be read" in finding["what"]
        assert topic_dir_name(name.topic_id, name.epoch) in finding["file"]


def test_everything_else_is_served_after_a_repair(copy: Everything) -> None:
    """Damage all kinds of repairable files at once."""
    kinds = ("log", "snapshot", "manifest", "layout", "sealed .data", "sealed .idx", ".tags", "CURRENT")
    for path, kind in [(KINDS[kind].file(copy), kind) for kind in kinds]:
        flip(path, KINDS[kind].offset)
    ran = run_here("doctor", copy.data, "--repair", "--apply", f"--cold-dir={copy.cold}")
    assert ran.code in (0, 1), ran.err
    with server(copy.folder) as running:
        said = ask(TopicClient(running.port, KEY))
    first = copy.first
    kept = {first.plain, first.jobs, first.leased, first.parked, first.across, first.fsync}
    assert kept <= set(said.states)
    for topic in kept:
        assert said.states[topic]["count"] > 0, topic
    assert len(said.routes) >= 5
    assert [one["cursor"] for one in said.cursors[first.plain]] == ["billing"]


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_placement_is_written_again_from_where_topics_are(
    everything: Everything, tmp_path: Path, is_lost: bool
) -> None:
    copy = everything.copied(tmp_path)
    path = copy.data / PLACEMENT_NAME
    if is_lost:
        path.unlink()
    else:
        flip(path, path.read_bytes().index(b"moved"))
    assert run_here("doctor", copy.data, f"--cold-dir={copy.cold}").code == 1
    assert run_here("doctor", copy.data, f"--cold-dir={copy.cold}", "--repair", "--apply").code == 0
    name = copy.first.moved
    assert run_here("inspect", copy.data, "--json").json["exceptions"] == {name: 1}
    with server(copy.folder) as running:
        said = ask(TopicClient(running.port, KEY))
        running.stop()
    assert said.rows[name] == copy.said.rows[name]
