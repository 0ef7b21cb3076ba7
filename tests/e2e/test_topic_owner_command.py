"""`topicsd topic where`, `seal` and `adopt`, against two servers that share a folder of objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_seal_and_adopt import append, ask, eventually, has_row, servers, values
from tests.harness.output.command_run import CommandResult, run_here
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow


def topic(server: WholeServer, *words: str) -> CommandResult:
    return run_here("topic", *words, "--url", f"http://127.0.0.1:{server.port}")


def test_a_topic_is_handed_on_by_commands(tmp_path: Path) -> None:
    one, other = servers(tmp_path)
    with one, other:
        append(one, "orders", *range(25))
        eventually(has_row(one, "orders"))
        node = ask(one, "GET", "orders/owner")[1]["node"]
        here = topic(one, "where", "orders")
        assert (here.code, here.err) == (0, "")
        assert here.out.startswith(
            f'topic "orders" is owned by node {node} (this server) with owner epoch 1; '
        )
        there = topic(other, "where", "orders")
        assert there.out.startswith(f'topic "orders" is owned by node {node} with owner epoch 1; ')
        assert topic(other, "where", "orders", "--json").json["is_here"] is False
        refused = topic(other, "adopt", "orders")
        assert (refused.code, refused.out) == (2, "")
        assert refused.err == (
            f'topicsd: topic "orders" is owned by node {node}: seal it there, or adopt it with '
            "--accept-loss if that node is gone for good\n"
        )
        sealed = topic(one, "seal", "orders")
        assert sealed.code == 0, sealed
        assert sealed.out.startswith(
            f'topic "orders" is sealed by node {node} (this server) with owner epoch 1; '
            "exported to seq 25; any node may adopt it; the seal took "
        )
        again = topic(one, "seal", "orders")
        assert (again.code, again.err) == (
            2,
            f'topicsd: topic "orders" is sealed by node {node} with owner epoch 1; '
            "adopt it on the node that continues it\n",
        )
        adopted = topic(other, "adopt", "orders", "--json")
        assert (adopted.code, adopted.json["is_here"], adopted.json["owner_epoch"]) == (0, True, 2)
        assert values(other, "orders") == list(range(25))
        back = topic(one, "adopt", "orders", "--accept-loss")
        assert back.code == 0, back
        assert "with owner epoch 3; " in back.out
        missing = topic(one, "where", "no-such")
        assert (missing.code, missing.out) == (2, "")
        assert "no-such" in missing.err


def test_a_seal_says_what_becomes_of_records_in_memory(tmp_path: Path) -> None:
    one, other = servers(tmp_path)
    with one, other:
        ask(one, "PUT", "feed", {"durability": "ephemeral"})
        append(one, "feed", *range(25))
        eventually(has_row(one, "feed"))
        refused = topic(one, "seal", "feed")
        assert (refused.code, refused.out) == (2, "")
        assert refused.err == (
            'topicsd: topic "feed" is ephemeral: its 25 records are in memory only, and no other node can '
            "get them; delete them, or seal it with --accept-loss to drop them\n"
        )
        assert len(values(one, "feed")) == 25
        sealed = topic(one, "seal", "feed", "--accept-loss")
        assert sealed.code == 0, sealed
        assert "exported to seq 25; any node may adopt it; the seal took " in sealed.out
        assert "all of it" not in topic(one, "where", "feed").out
        assert topic(other, "adopt", "feed").code == 0
        assert values(other, "feed") == []
        assert append(other, "feed", 1)[1]["first_seq"] > 25
