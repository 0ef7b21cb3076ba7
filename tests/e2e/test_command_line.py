"""The command as a process: help, one-line errors, closed pipes, interrupts."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.output.command_run import PROJECT, command_line, environment, run_command, run_here
from tests.harness.shard.data_dirs import DIRECTORIES, stop
from tests.harness.shard.one_shard import RealShard, record
from topicsd.cli.main import failed_function, is_output_error
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import LAYOUT_NAME

COMMANDS = ("inspect", "verify")


@pytest.mark.slow
def test_the_installed_script_runs_the_module() -> None:
    script = Path(sys.executable).with_name("topicsd")
    outputs = [
        subprocess.run([*start, "--version"], capture_output=True, text=True, env=environment())
        for start in ([str(script)], [sys.executable, "-m", "topicsd"])
    ]
    assert outputs[0].stdout == outputs[1].stdout
    assert re.fullmatch(
        r"topicsd \d+\.\d+\.\d+, data directory format \d+, WAL format \d+\n", outputs[0].stdout
    )


@pytest.mark.slow
def test_help_names_the_commands_and_each_has_an_example() -> None:
    said = run_command("--help")
    assert (said.code, said.err) == (0, "")
    for command in COMMANDS:
        assert re.search(rf"^    {command} +\w", said.out, re.MULTILINE)
        help_text = run_command(command, "--help")
        assert help_text.code == 0
        assert f"example:\n  topicsd {command} ./topics-data" in help_text.out
        assert "lacks what its original wrote" in " ".join(help_text.out.split())


@pytest.mark.parametrize("arguments", [(), ("inspect",), ("fix", "."), ("inspect", ".", "--shard", "one")])
def test_a_wrong_command_line_exits_with_2_and_shows_the_usage(arguments: tuple[str, ...]) -> None:
    ran = run_here(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("usage: topicsd")


@pytest.mark.slow
def test_without_asserts_it_does_not_run(tmp_path: Path) -> None:
    for extra, variables in ((["-O"], {}), ([], {"PYTHONOPTIMIZE": "1"})):
        line = [sys.executable, *extra, "-m", "topicsd", "inspect", str(tmp_path)]
        ran = subprocess.run(line, capture_output=True, text=True, env={**environment(), **variables})
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr == "topicsd: must run with assertions enabled: remove -O and PYTHONOPTIMIZE\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_path_that_is_no_data_directory_is_refused_in_one_line(tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    DIRECTORIES["clean"](tmp_path / "data")
    os.unlink(tmp_path / "data" / LAYOUT_NAME)
    DIRECTORIES["clean"](tmp_path / "good")
    sentences = {
        "gone": "{path} does not exist",
        "file": "{path} is a file, not a data directory",
        "empty": f"{{path}} is not a data directory: it has no {LAYOUT_NAME}",
        "data": "{path}/LAYOUT.json: missing, but {path} has shards; "
        "to rebuild it from the shards, run: topicsd doctor {path}",
        "good/shards/00": "{path} is a shard; name the data directory that contains it, "
        "and select the shard with --shard",
        "file/below": "{path}: Not a directory",
    }
    for name, sentence in sentences.items():
        path = tmp_path / name
        ran = run_here(command, path)
        assert (ran.code, ran.out) == (1 if name == "data" else 2, "")
        assert ran.err == f"topicsd: {sentence.format(path=path)}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_layout_is_named(tmp_path: Path, command: str) -> None:
    DIRECTORIES["clean"](tmp_path)
    layout = tmp_path / LAYOUT_NAME
    text = layout.read_text()
    for damaged, said in (
        (text[:20], ": damaged: "),
        (text.replace('"shards": 1', '"shards": 2'), "its checksum does not match"),
        (text.replace('"format": 1', '"format": 9'), "unknown format 9; this program reads format 1"),
        ("", ": damaged: "),
    ):
        layout.write_text(damaged)
        ran = run_here(command, tmp_path)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.startswith(f"topicsd: {layout}: ")
        assert said in ran.err
        assert (f"topicsd doctor {tmp_path}" in ran.err) == (": damaged: " in ran.err)
    layout.write_text(text)
    os.rename(tmp_path / "shards/00", tmp_path / "shards/07")
    ran = run_here(command, tmp_path)
    assert ran.code == 1
    assert f"{tmp_path}/shards/00: missing, but LAYOUT.json names 1 shard: " in ran.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_cannot_be_read_is_named_and_the_other_shards_are_shown(
    tmp_path: Path, command: str
) -> None:
    real = DIRECTORIES["of_many_shards"](tmp_path)
    (wal_file,) = real.wal_files()
    os.rename(wal_file, wal_file + ".elsewhere")
    os.symlink(wal_file + ".elsewhere", wal_file)
    ran = run_here(command, tmp_path)
    assert (ran.code, ran.err) == (1, "")
    assert f"{wal_file}" in ran.out.replace("\n", "").replace(" ", "")
    assert "Too many levels of symbolic links" in " ".join(ran.out.split())
    assert "shard 02" in ran.out


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_permission_is_reported(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    DIRECTORIES["clean"](tmp_path)

    def refuse(self: RealFs, path: str) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(RealFs, "open_read", refuse)
    ran = run_here(command, tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"topicsd: {tmp_path / LAYOUT_NAME}: Permission denied\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_path_that_is_not_utf8_is_accepted(tmp_path: Path, command: str) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    DIRECTORIES["clean"](path)
    assert run_command(command, path, "--json").json["directory"].endswith(r"caf\xe9")
    assert run_command(command, path).code == 0


def large(path: Path) -> None:
    """Create a directory with more frames than a pipe holds."""
    shard = RealShard(path, wal_file_bytes=1 << 20)
    for _ in range(80):
        shard.append("orders", *(record(number) for number in range(200)))
    stop(shard)


@pytest.mark.slow
def test_a_closed_pipe_ends_the_command_quietly(tmp_path: Path) -> None:
    large(tmp_path)
    for more in ("--frames", "--frames --json"):
        line = " ".join(command_line("inspect", tmp_path, more))
        script = f"set -o pipefail; {line} | head -n 3"
        ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment())
        assert (ran.returncode, ran.stderr) == (0, "")
        assert len(ran.stdout.splitlines()) == 3


def test_a_full_disk_under_the_output_is_reported(tmp_path: Path) -> None:
    DIRECTORIES["clean"](tmp_path)
    with open("/dev/full", "w") as full:
        line = command_line("inspect", tmp_path)
        ran = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, env=environment())
    assert ran.returncode == 2
    assert ran.stderr == "topicsd: cannot write the output: No space left on device\n"


def test_an_error_without_a_path_is_not_reported_as_an_output_error() -> None:
    def create() -> None:
        os.close(-1)

    with pytest.raises(OSError, match="Bad file descriptor") as failed:
        create()
    assert not is_output_error(failed.value)
    assert failed_function(failed.value).startswith("create, test_command_line.py:")


@pytest.mark.slow
def test_missing_shared_memory_is_reported(tmp_path: Path) -> None:
    line = command_line("serve", "--port=0", "--shards=1", f"--data-dir={tmp_path / 'data'}")
    limited = ["prlimit", "--fsize=4096", *line]
    ran = subprocess.run(limited, capture_output=True, text=True, env=environment(), timeout=60)
    assert ran.returncode == 1
    assert "shared memory: /dev/shm is limited" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Restore the default handling of SIGINT: background jobs of a shell ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_exits_with_130_and_without_a_traceback(tmp_path: Path) -> None:
    large(tmp_path)
    line = command_line("inspect", tmp_path, "--frames")
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        # It has started, and blocks on the full pipe.
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == "topicsd: interrupted\n"


def test_output_is_utf8_in_every_locale(tmp_path: Path) -> None:
    shard = RealShard(tmp_path)
    shard.append("orders", record(1, tag="café"))
    stop(shard)
    line = command_line("inspect", tmp_path, "--frames")
    ran = subprocess.run(line, capture_output=True, env={**environment(), "PYTHONIOENCODING": "ascii"})
    assert 'tag="café"'.encode() in ran.stdout


@pytest.mark.slow
def test_progress_is_for_a_terminal_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DIRECTORIES["clean"](tmp_path)
    assert run_command("verify", tmp_path).err == ""
    ours, theirs = pty.openpty()
    script = (
        "import sys; from topicsd.cli import progress; progress.STEP_BYTES = 1000; "
        f"from topicsd.__main__ import main; sys.exit(main(['verify', {str(tmp_path)!r}]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=PROJECT, stdout=subprocess.PIPE, stderr=theirs, env=environment()
    )
    os.close(theirs)
    seen = os.read(ours, 10_000).decode()
    os.close(ours)
    assert ran.returncode == 0
    assert re.search(r"\r\x1b\[Kshard 00: [\d.]+ KiB of 64 KiB", seen)
    assert seen.endswith("\r\x1b[K"), "the progress line is cleared at the end"
    assert ran.stdout.startswith(b"shard 00  1 file")
