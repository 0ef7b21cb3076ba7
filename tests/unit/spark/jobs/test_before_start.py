"""What can be told before Spark is started is told without it, and before anything is noted."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark.__main__ import main
from tests.harness.one_shard import INSTANCE
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import create_data_dir


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "export --path nowhere --topics a --out out",
            "path: nowhere is no data directory: it has no LAYOUT",
        ),
        ("export --path data --pattern ( --out out", "subscribePattern: is no regular expression: missing )"),
        ("export --path data --topics , --out out", "subscribe: names no topic"),
        (
            "stats --path data --topics a --from noon",
            "--from: 'noon' is no place in a topic; it is earliest,",
        ),
        ("stats --path data --topics a --to {", "--to: startingOffsets: '{' is not understood"),
        ("stats --path data --topics a --option x=1", "x: there is no such option; there are path, url"),
        ("stats --path data --topics a --option mode=x", "mode: 'x' is not allowed; it is one of FAILFAST"),
        (
            "stats --path data --topics a --png no/a.png",
            "--png: no/a.png cannot be written; its folder has to",
        ),
        ("stats --url here --topics a", "url: 'here' is no server; like this: http://127.0.0.1:4000"),
        ("replay --in out --url here", "url: 'here' is no server; like this: http://127.0.0.1:4000"),
        (
            "replay --in out --url http://127.0.0.1:1",
            "url: http://127.0.0.1:1 does not answer: Connection ref",
        ),
        ("compact --path data --topics a --out out --to-url http://127.0.0.1:1 --into b", "does not answer"),
    ],
)
def test_a_job_that_cannot_end_well_is_refused_at_once(
    arguments: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spark.jobs.before_start.PATIENCE_S", 0.0)
    monkeypatch.setattr("spark.__main__.opened", None)
    create_data_dir(RealFs(), "data", 1, INSTANCE)
    assert main(arguments.split()) == 1
    told = capsys.readouterr().err.replace(f"{tmp_path}/", "")
    assert sentence in told
    assert told.startswith(f"{arguments.split()[0]}: ")
    assert len(told.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("flag", "text"), [("--into", "a/b"), ("--into", "-a"), ("--prefix", "a b")])
def test_a_topic_that_cannot_be_is_refused(
    flag: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spark.jobs.before_start._check_answers", lambda url: None)
    assert main(["replay", "--in", "out", "--url", "http://127.0.0.1:1", f"{flag}={text}"]) == 1
    assert f"replay: {flag}: {text!r} is not how a topic may be named; names match" in capsys.readouterr().err
