"""API keys from the environment authorize requests, and appear in no log and no child process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.server.processes import children
from tests.harness.server.whole_server import WholeServer

ALL = "hush-hush-hush-hush-all"
READER = "hush-hush-hush-hush-reader"


def ask(server: WholeServer, method: str, path: str, key: str | None) -> tuple[int, str, str]:
    fields = [] if key is None else [f"authorization: Bearer {key}"]
    body = {"records": [{"data": 1}]} if method == "POST" else None
    answer = server.ask(method, path, body, *fields)
    code = answer.code if answer.status >= 400 else ""
    return answer.status, code, answer.fields.get("www-authenticate", "")


@pytest.mark.slow
def test_a_key_opens_what_it_is_for_and_is_nowhere_else(tmp_path: Path) -> None:
    keys = {"TOPICS_API_KEYS": f"{ALL},{READER}:read:mine."}
    with WholeServer(tmp_path, environ=keys) as server:
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
        pids = children(server.pid)
        assert pids
        for child in (Path("/proc", str(pid)) for pid in pids):
            assert b"hush" not in (child / "environ").read_bytes() + (child / "cmdline").read_bytes()
        assert server.stop() == 0
    assert "hush" not in server.log.read_text()
