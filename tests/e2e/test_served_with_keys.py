"""API keys from the environment authorize requests, and appear in no log and no child process."""

from __future__ import annotations

import http.client
import subprocess
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tests.harness.running_server import RunningServer, served

ALL = "hush-hush-hush-hush-all"
READER = "hush-hush-hush-hush-reader"


def ask(server: RunningServer, method: str, path: str, key: str | None) -> tuple[int, str, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        headers = {"content-type": "application/json"}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        body = b'{"records":[{"data":1}]}' if method == "POST" else None
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        error = msgspec.json.decode(answer.read()).get("error", {})
        return answer.status, error.get("code", ""), answer.getheader("www-authenticate", "")


@pytest.mark.slow
def test_a_key_opens_what_it_is_for_and_is_nowhere_else(tmp_path: Path) -> None:
    keys = {"TOPICS_API_KEYS": f"{ALL},{READER}:read:mine."}
    with served(tmp_path, environ=keys) as server:
        assert ask(server, "POST", "/v0/topics/mine.a", ALL)[0] == 201
        assert ask(server, "POST", "/v0/topics/other", ALL)[0] == 201
        assert ask(server, "GET", "/v0/topics/mine.a", READER)[0] == 200
        for key in (None, "wrong-wrong-wrong-wrong"):
            for path in ("/v0/topics/mine.a", "/v0/topics/none", "/v0/topics", "/v0/metrics"):
                status, code, challenge = ask(server, "GET", path, key)
                assert (status, code) == (401, "unauthorized"), path
                assert challenge.startswith("Bearer"), path
        for method, path in (
            ("POST", "/v0/topics/mine.a"),
            ("DELETE", "/v0/topics/mine.a"),
            ("GET", "/v0/topics/other"),
            ("GET", "/v0/topics/none"),
        ):
            assert ask(server, method, path, READER)[:2] == (403, "forbidden")
        assert ask(server, "GET", "/v0/health", None)[0] == 200
        pids = subprocess.run(["ps", "-o", "pid=", "--ppid", str(server.process.pid)], capture_output=True)
        children = [Path("/proc", pid) for pid in pids.stdout.decode().split()]
        assert children
        for child in children:
            assert b"hush" not in (child / "environ").read_bytes() + (child / "cmdline").read_bytes()
    assert "hush" not in server.log.read_text()
