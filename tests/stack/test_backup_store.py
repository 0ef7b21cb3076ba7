"""Backups in an object store of another project: the same promises as in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.clients.topic_client import TopicClient
from tests.harness.output.command_run import run_here
from tests.harness.server.whole_server import WholeServer
from tests.stack.servers import CREDENTIALS, S3Server


def test_a_backup_in_s3_is_incremental_verified_restored_and_pruned(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    url = s3.url("backups")
    flags = ("--segment-max-events=200", "--wal-file-bytes=1MiB", "--checkpoint-interval-ms=300")
    with WholeServer(tmp_path, *flags, shards=2) as running:
        api = TopicClient(running.port)
        for _ in range(10):
            api.append("a", *[{"data": "x" * 1000} for _ in range(100)])
        first = run_here("backup", "create", tmp_path / "data", "--to", url, "--json")
        assert first.code == 0, first.err
        api.append("a", {"data": "last"})
        rows = api.rows("a")
        second = run_here("backup", "create", tmp_path / "data", "--to", url, "--json")
        assert second.code == 0, second.err
    assert len(run_here("backup", "list", url, "--json").json["backups"]) == 2
    assert run_here("backup", "verify", url).code == 0
    restored = run_here("backup", "restore", url, tmp_path / "restored" / "data")
    assert restored.code == 0, restored.err
    with WholeServer(tmp_path / "restored", shards=2) as running:
        assert TopicClient(running.port).rows("a") == rows
    pruned = run_here("backup", "prune", url, "--keep=1", "--json").json
    assert pruned["backups"] == [first.json["id"]]
    assert run_here("backup", "verify", url).code == 0
