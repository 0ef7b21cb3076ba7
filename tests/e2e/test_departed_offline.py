"""What the offline tools and Spark say about topics that a node must not serve any more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark.errors import SourceError
from spark.source.offsets import check_topics
from spark.source.read_options import parse_options
from spark.view.directory_view import DirectoryView
from tests.harness.output.command_run import run_here
from tests.harness.server.everything import OTHER_NODE, Everything, server, snapshots_of
from tests.harness.server.everything_fill import SEGMENT_RECORDS
from topicsd.engine.checkpoint.snapshot_format import epoch_floor_of
from topicsd.engine.ownership.departed import departed_of, to_forget_of


def test_inspect_lists_departed_topics_and_what_is_kept_of_them(everything: Everything) -> None:
    names = everything.first
    shards = run_here("inspect", everything.data, "--json").json["shards"]
    departed = {one["topic"]: one for shard in shards for one in shard["departed"]}
    assert departed.keys() == {names.sealed, names.sealed_late, names.taken}
    taken, sealed = departed[names.taken], departed[names.sealed]
    assert (taken["state"], taken["node"], taken["owner_epoch"]) == ("moved", OTHER_NODE, 2)
    assert taken["head_seq"] >= SEGMENT_RECORDS
    assert (sealed["state"], sealed["head_seq"]) == ("sealed", None)
    assert not departed.keys() & {topic["topic"] for shard in shards for topic in shard["topics"]}
    assert sum(shard["rows_to_forget"] for shard in shards) > 0
    out = run_here("inspect", everything.data).out
    assert re.search(rf"{names.taken} +moved +{OTHER_NODE} ", out)
    assert "of deleted topics still to be removed" in out
    one = run_here("inspect", everything.data, "--topic", names.taken)
    assert one.code == 2
    assert one.err == (
        f'topicsd: topic "{names.taken}" has departed from {everything.data}: moved, node {OTHER_NODE}, '
        "owner epoch 2\n"
    )


def test_inspect_shows_the_ownership_of_a_topic(everything: Everything) -> None:
    owned = run_here("inspect", everything.data, "--topic", everything.first.plain, "--json").json["topic"][
        "ownership"
    ]
    assert owned["owner_epoch"] == 1
    assert owned["ceiling"] > 1 << 20
    assert not owned["is_sealing"]
    out = run_here("inspect", everything.data, "--topic", everything.first.plain).out
    assert f"this node, owner epoch 1, ceiling {owned['ceiling']}, exported to seq" in out


@pytest.mark.parametrize("kind", ["log", "segment"])
def test_a_repair_keeps_departed_topics_and_what_is_owed(
    everything: Everything, tmp_path: Path, kind: str
) -> None:
    copy = everything.copied(tmp_path)
    before = snapshots_of(copy)
    root = copy.data / "shards" / "00"
    path = max((root / "wal").iterdir()) if kind == "log" else min((root / "topics").rglob("*.data"))
    data = bytearray(path.read_bytes())
    data[2000 if kind == "log" else 40] ^= 1
    path.write_bytes(data)
    run_here("doctor", copy.data, "--repair", "--apply", f"--cold-dir={copy.cold}")
    after = snapshots_of(copy)
    assert after[0].head.number > before[0].head.number
    for old, new in zip(before, after, strict=True):
        # A repair of the log also reads what departed after the snapshot.
        assert {one.name for one in departed_of(old.head)} <= {one.name for one in departed_of(new.head)}
        assert set(to_forget_of(old.head)) <= set(to_forget_of(new.head))
        assert epoch_floor_of(old.head) <= epoch_floor_of(new.head)
        assert old.head.sections.get("objects") == new.head.sections.get("objects")
    assert copy.first.taken in {topic.name for topic in after[0].topics}


def test_spark_leaves_departed_topics_out_and_says_where_one_is(everything: Everything) -> None:
    path = {"path": str(everything.data), "coldDir": str(everything.cold)}
    options = parse_options({**path, "subscribePattern": "a-.*"}, is_stream=False)
    with DirectoryView(options) as view:
        assert not {everything.first.taken, everything.first.sealed} & view.topics.keys()
    options = parse_options({**path, "subscribe": everything.first.taken}, is_stream=False)
    with DirectoryView(options) as view, pytest.raises(SourceError) as refused:
        check_topics(view, options)
    assert str(refused.value).startswith(f'topic "{everything.first.taken}" is owned by node {OTHER_NODE} ')


@pytest.mark.slow
def test_the_server_refuses_requests_for_a_departed_topic(everything: Everything, tmp_path: Path) -> None:
    copy = everything.copied(tmp_path)
    with server(copy.folder) as running:
        for name, code in ((copy.first.taken, "topic_moved"), (copy.first.sealed, "topic_sealed")):
            for method in ("GET", "DELETE", "PUT"):
                answer = running.ask(
                    method, f"/v0/topics/{name}", None, "authorization: Bearer the-key-of-this-test"
                )
                assert (answer.status, answer.json["error"]["code"]) == (409, code), answer
