from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark.__main__ import main
from spark.jobs.command_line import parse, source_options
from tests.harness.shard.shard_driver import INSTANCE
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import create_data_dir

PROJECT = Path(__file__).parents[4]
READ = ["--path", "data", "--topics", "orders"]


@pytest.mark.parametrize("command", ["export", "stats", "replay", "compact", "zip"])
def test_each_job_has_a_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: python -m spark {command}" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["export", "stats", "replay", "compact"])
def test_a_help_explains_only_the_flags_that_the_job_has(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    output = capsys.readouterr().out
    assert ("--from POSITION" in output) == ("A position (--from, --to)" in output) == (command != "replay")
    assert "TOPICS_API_KEY holds the API key" in output


def test_the_list_of_jobs_says_what_each_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    output = " ".join(capsys.readouterr().out.split())
    assert "export Export topics to Parquet, in folders by topic and day" in output
    assert "compact Export the latest record of each tag to Parquet" in output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["export", "--topics", "a", "--out", "x"], "one of the arguments --path --url is required"),
        (["export", "--path", "data", "--out", "x"], "one of the arguments --topics --pattern is required"),
        (["stats", *READ, "--url", "http://a"], "argument --url: not allowed with argument --path"),
        (["stats", *READ, "--option", "mode"], "argument --option: must be KEY=VALUE, got 'mode'"),
        (["export", *READ], "the following arguments are required: --out"),
        (["replay", "--in", "x"], "the following arguments are required: --url"),
        (
            ["compact", *READ, "--out", "x", "--into", "b"],
            "compact: --into and --prefix need a server; set --to-url",
        ),
        (["compact", *READ, "--out", "x", "--to-url", "http://a"], "compact: --to-url needs --into or"),
        (["zip", "topicsd.whl"], "zip: FILE must end in .zip"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_flags_become_options_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_API_KEY", "secret")
    by_path = parse(["stats", *READ, "--option", "coldDir=/cold=1"])
    assert source_options(by_path) == {"path": "data", "subscribe": "orders", "coldDir": "/cold=1"}
    by_url = parse(["stats", "--url", "http://a", "--pattern", "o.*"])
    assert source_options(by_url) == {"url": "http://a", "subscribePattern": "o.*", "apiKey": "secret"}


def test_spark_submit_sets_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse(["stats", *READ]).master == "local[*]"
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert parse(["stats", *READ]).master == ""


def test_without_a_java_that_will_do_the_job_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    create_data_dir(RealFs(), str(tmp_path / "data"), 1, INSTANCE)
    assert main(["stats", "--path", str(tmp_path / "data"), "--topics", "orders"]) == 1
    output = capsys.readouterr().err
    assert output.startswith(f"stats: JAVA_HOME={tmp_path}: cannot run java: ")
    assert "Spark needs Java 17 or 21: install one" in output
    assert len(output.splitlines()) == 1


BARE = "import sys; sys.path.insert(0, sys.argv.pop()); from spark.__main__ import main; sys.exit(main())"


def test_without_pyspark_the_job_says_what_to_install(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\n")
    java.chmod(0o755)
    # Without anything that is installed.
    bare = [sys.executable, "-I", "-S", "-c", BARE, "stats", *READ, str(PROJECT)]
    ran = subprocess.run(bare, env={**os.environ, "JAVA_HOME": str(tmp_path)}, capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr == "stats: Python package pyspark is missing; install it with: pip install '.[spark]'\n"
