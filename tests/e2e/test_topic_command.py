"""`topicsd topic move`, against a running server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.output.command_run import run_here
from tests.harness.server.whole_server import WholeServer, name_on

pytestmark = pytest.mark.slow

SHARDS = 2
TOPIC = name_on(0, SHARDS, "orders")
KEYS = {"TOPICS_API_KEYS": "operator-key:admin,writer-key:write"}


def test_a_topic_is_moved_and_a_refusal_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WholeServer(tmp_path, shards=SHARDS) as server:
        url = f"http://127.0.0.1:{server.port}"
        server.ask_json("PUT", f"/v0/topics/{TOPIC}")
        moved = run_here("topic", "move", TOPIC, "--shard", 1, "--url", url)
        assert (moved.code, moved.err) == (0, "")
        assert moved.out.startswith(f'topic "{TOPIC}" is on shard 1 now; its writes waited for ')
        again = run_here("topic", "move", TOPIC, "--shard", 1, "--url", url)
        assert again.out == f'topic "{TOPIC}" was on shard 1 already\n'
        document = run_here("topic", "move", TOPIC, "--shard", 0, "--url", url, "--json").json
        assert (document["shard"], document["moved"]) == (0, True)
        refused = run_here("topic", "move", TOPIC, "--shard", 7, "--url", url)
        assert (refused.code, refused.out) == (2, "")
        assert refused.err == "topicsd: shard: must be a shard from 0 to 1, got 7\n"
        missing = run_here("topic", "move", "a/b c", "--shard", 1, "--url", url)
        assert (missing.code, missing.out) == (2, "")
        assert missing.err.startswith("topicsd: topic")
    gone = run_here("topic", "move", TOPIC, "--shard", 1, "--url", url)
    assert gone.err == f"topicsd: no response from {url}: Connection refused\n"


def test_the_key_is_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with WholeServer(tmp_path, shards=SHARDS, environ=KEYS) as server:
        url = f"http://127.0.0.1:{server.port}"
        for key, sentence in (("", "key"), ("writer-key", "admin"), ("operator-key", "not exist")):
            monkeypatch.setenv("TOPICS_API_KEY", key)
            ran = run_here("topic", "move", TOPIC, "--shard", 1, "--url", url)
            assert ran.code == 2
            assert sentence in ran.err


def test_a_url_without_a_scheme_is_refused() -> None:
    ran = run_here("topic", "move", TOPIC, "--shard", 1, "--url", "localhost:1")
    assert ran.err == "topicsd: --url: must begin with http:// or https://, got localhost:1\n"


def test_topic_alone_shows_its_help() -> None:
    ran = run_here("topic")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("usage: topicsd topic")
