from __future__ import annotations

import shlex
import sys
from pathlib import Path

import msgspec
import pytest

from loadtest import __main__ as command_line
from loadtest.bench import fanout_lines, subjects
from loadtest.bench import history as results
from loadtest.bench import server as server_bench
from loadtest.bench.lines import LINES
from loadtest.bench.result import Result

# The stub has no segments, uploads, jobs, workers or routes.
NOT_OF_A_STUB = {"sealed", "ndjson", "jobs", "waiting", "fair", "job", "restart"} | {
    name for name in LINES if name.startswith("route")
}
STUB = (sys.executable, "-m", "tests.unit.loadtest.stub_server")


def measure(name: str, home: Path, command: tuple[str, ...] = STUB) -> Result:
    """Measure briefly; on a busy machine, longer until an answer arrives in the measured time."""
    for seconds in (0.05, 0.5, 5.0):
        result = server_bench.measure(name, LINES[name], seconds, 1, str(home), command)
        if result.note != "no answer arrived in the measured time":
            break
    return result


@pytest.fixture(autouse=True)
def _fewer_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout_lines, "SESSIONS", 300)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LINES if name not in NOT_OF_A_STUB])
def test_a_line_is_measured(tmp_path: Path, name: str) -> None:
    result = measure(name, tmp_path)
    assert result.verdict in ("as measured", "holds", "aim", "missed"), result.note
    assert result.value is not None
    assert (result.ratio is None) == (name in ("memory", "remote", "sessions", "filter"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_server_that_does_not_start_fails_the_line_with_its_output(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "raise SystemExit('the port is taken')")
    result = measure("memory", tmp_path, command)
    assert result.verdict == "failed"
    assert "the port is taken" in result.note
    assert not list(tmp_path.iterdir())


def test_the_settings_of_the_caller_do_not_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_MAX_TOPICS", "1")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    environ = subjects.environ()
    assert "TOPICS_MAX_TOPICS" not in environ
    assert environ["PYTHONPATH"] == f"{subjects.PROJECT}:/somewhere"


@pytest.mark.slow
def test_a_saved_run_leaves_a_line_of_json_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "RESULTS", str(tmp_path))
    monkeypatch.setattr(server_bench, "confine", lambda: None)
    given = ["bench", "memory", "--seconds=0.05", "--rounds=1", "--save"]
    monkeypatch.setattr(sys, "argv", ["loadtest", *given, f"--server-command={shlex.join(STUB)}"])
    assert command_line.main() == 0
    assert "memory, empty, 2 shards (PSS)" in capsys.readouterr().out
    saved = msgspec.json.decode((tmp_path / "bench.jsonl").read_bytes())
    assert [line["line"] for line in saved["lines"]] == ["memory"]
    assert {"at", "commit", "machine", "python", "generator"} <= set(saved)
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_line_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["loadtest", "bench", "wrties"])
    with pytest.raises(SystemExit):
        command_line.main()
    assert "unknown name wrties; must be one of writes, fsync" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--rounds=0", "must be an integer of at least 1, got '0'"),
        ("--seconds=-1", "must be a positive number of seconds, got '-1'"),
        ("--seconds=nan", "must be a positive number of seconds, got 'nan'"),
        ("--dir=nowhere/at/all", "must be an existing directory, got 'nowhere/at/all'"),
    ],
)
def test_an_invalid_option_is_reported_before_anything_starts(
    given: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["loadtest", "bench", "memory", given])
    with pytest.raises(SystemExit):
        command_line.main()
    assert message in capsys.readouterr().err
