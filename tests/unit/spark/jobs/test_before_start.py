"""Errors that can be found without Spark are reported before it starts and before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.contract.names import TOPIC_NAME_RULE
from spark.__main__ import main
from tests.harness.shard.shard_driver import INSTANCE
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import create_data_dir


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "export --path nowhere --topics a --out out",
            "path: nowhere is not a data directory: it has no LAYOUT",
        ),
        (
            "export --path data --pattern ( --out out",
            "subscribePattern: must be a regular expression: missing )",
        ),
        ("export --path data --topics , --out out", "subscribe: must name at least one topic"),
        (
            "stats --path data --topics a --from noon",
            "--from: must be earliest, latest, a time such as",
        ),
        ("stats --path data --topics a --to {", "--to: startingOffsets: must be JSON such as"),
        ("stats --path data --topics a --option x=1", "x: unknown option; must be one of path, url"),
        (
            "stats --path data --topics a --option mode=x",
            "mode: must be one of FAILFAST, PERMISSIVE, got 'x'",
        ),
        (
            "stats --path data --topics a --png no/a.png",
            "--png: cannot write no/a.png; its folder must exist",
        ),
        (
            "stats --url here --topics a",
            "url: must be an http or https URL such as http://127.0.0.1:4000, got 'here'",
        ),
        (
            "replay --in out --url here",
            "url: must be an http or https URL such as http://127.0.0.1:4000, got 'here'",
        ),
        (
            "replay --in out --url http://127.0.0.1:1",
            "url: no response from http://127.0.0.1:1: Connection ref",
        ),
        ("compact --path data --topics a --out out --to-url http://127.0.0.1:1 --into b", "no response from"),
    ],
)
def test_a_job_that_cannot_succeed_is_refused_at_once(
    arguments: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spark.jobs.before_start.TIMEOUT_S", 0.0)
    monkeypatch.setattr("spark.__main__.new_session", None)
    create_data_dir(RealFs(), "data", 1, INSTANCE)
    assert main(arguments.split()) == 1
    output = capsys.readouterr().err.replace(f"{tmp_path}/", "")
    assert sentence in output
    assert output.startswith(f"{arguments.split()[0]}: ")
    assert len(output.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("flag", "text"), [("--into", "a/b"), ("--into", "-a"), ("--prefix", "a b")])
def test_a_topic_that_cannot_be_is_refused(
    flag: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spark.jobs.before_start._check_answers", lambda url: None)
    assert main(["replay", "--in", "out", "--url", "http://127.0.0.1:1", f"{flag}={text}"]) == 1
    assert f"replay: {flag}: must match {TOPIC_NAME_RULE}, got {text!r}" in capsys.readouterr().err
