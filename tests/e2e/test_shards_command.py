"""`topicsd shards`, against a running server."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.output.command_run import command_line, environment, run_here
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow

TOPICS = [f"t{number}" for number in range(8)]
KEYS = {"TOPICS_API_KEYS": "operator-key:read+admin,reader-key:read"}


def url_of(server: WholeServer) -> str:
    return f"http://127.0.0.1:{server.port}"


def fill(server: WholeServer) -> None:
    for topic in TOPICS:
        server.ask_json("POST", f"/v0/topics/{topic}", {"records": [{"data": "x" * 100}] * 5})


def test_the_number_of_shards_is_shown_and_changed(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=2) as server:
        fill(server)
        url = url_of(server)
        server.wait_for(
            lambda: sum(one["records"] for one in server.ask_json("GET", "/v0/shards")["shards"]) == 40,
            "the board counts all records",
        )
        shown = run_here("shards", "--url", url)
        assert (shown.code, shown.err) == (0, "")
        first, header, *rows = shown.out.splitlines()
        assert (first, header.split()) == ("2 shards", ["SHARD", "STATE", "TOPICS", "RECORDS", "SIZE"])
        cells = [row.split() for row in rows]
        assert [row[:2] for row in cells] == [["0", "ready"], ["1", "ready"]]
        assert sum(int(row[2]) for row in cells) == len(TOPICS)
        assert sum(int(row[3]) for row in cells) == 5 * len(TOPICS)
        same = run_here("shards", "set", 2, "--url", url)
        assert (same.code, same.out, same.err) == (0, "the server has 2 shards already\n", "")
        grown = run_here("shards", "set", 5, "--url", url)
        assert grown.code == 0, grown
        assert re.fullmatch(r"the server has 5 shards; \d topics? moved; \d+\.\d s\n", grown.out)
        assert grown.err.startswith("2 shards, 5 requested: ")
        document = run_here("shards", "--url", url, "set", 1, "--json").json
        assert (document["count"], document["target"], document["state"]) == (1, 1, "steady")
        server.wait_for(
            lambda: (
                [one["topics"] for one in run_here("shards", "--json", "--url", url).json["shards"]] == [8]
            ),
            "the board counts the topics of the shard that is left",
        )
        for count in (0, 257):
            refused = run_here("shards", "set", count, "--url", url)
            assert (refused.code, refused.out) == (2, "")
            assert refused.err == f"topicsd: count: must be 1 to 256, got {count}\n"
    gone = run_here("shards", "--url", url)
    assert gone.err == f"topicsd: no response from {url}: Connection refused\n"


def test_an_interrupted_command_says_that_the_server_continues(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=1) as server:
        fill(server)
        with subprocess.Popen(
            command_line("shards", "set", "3", "--url", url_of(server)),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("1 shard, 3 requested: ")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (130, "")
        assert "the server continues to 3 shards: run `topicsd shards` to see how far it is" in err
        waited = run_here("shards", "set", 3, "--url", url_of(server))
        assert waited.code == 0
        assert run_here("shards", "--url", url_of(server)).out.startswith("3 shards\n")


def test_the_command_waits_for_a_server_that_restarts(tmp_path: Path) -> None:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with WholeServer(tmp_path, f"--port={port}", shards=1) as server:
        fill(server)
        with subprocess.Popen(
            command_line("shards", "set", "3", "--url", url_of(server)),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            process.stderr.readline()
            server.kill()
            server.start()
            out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert out.startswith("the server has 3 shards; ")


def test_the_key_is_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with WholeServer(tmp_path, shards=1, environ=KEYS) as server:
        for key, sentence in (("", "key"), ("reader-key", "admin")):
            monkeypatch.setenv("TOPICS_API_KEY", key)
            refused = run_here("shards", "set", 2, "--url", url_of(server))
            assert refused.code == 2
            assert sentence in refused.err
        assert run_here("shards", "--url", url_of(server)).code == 0
        monkeypatch.setenv("TOPICS_API_KEY", "operator-key")
        assert run_here("shards", "set", 1, "--url", url_of(server)).code == 0


def test_a_wrong_action_or_number_is_a_sentence() -> None:
    assert "invalid choice: 'sett'" in run_here("shards", "sett", 2).err
    assert "N: invalid int value: 'two'" in run_here("shards", "set", "two").err
