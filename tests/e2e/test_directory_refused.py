"""A data directory that the server cannot use: one error line with path, owner, mode and user."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.output.command_run import CommandResult, command_line, environment, run_here
from topicsd.disk.access import access_problem, denial_of, user_name
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import create_data_dir

pytestmark = pytest.mark.usefixtures("alone")

UNPRIVILEGED_ID = 65534
# Import first: the interpreter may be in a folder that only its owner can read.
UNPRIVILEGED_PROGRAM = f"""
import os, sys
import router.supervision.supervisor, topicsd.cli.main
from topicsd.__main__ import main
os.setgroups([])
os.setgid({UNPRIVILEGED_ID})
os.setuid({UNPRIVILEGED_ID})
sys.exit(main(sys.argv[1:]))
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes the user of a process")


def serve(data_dir: object, *flags: object) -> CommandResult:
    return run_here("serve", "--port=0", f"--data-dir={data_dir}", *flags)


def serve_unprivileged(data_dir: Path) -> CommandResult:
    return run_unprivileged("serve", "--port=0", f"--data-dir={data_dir}")


def run_unprivileged(*line: str) -> CommandResult:
    done = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED_PROGRAM, *line],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)


def sentence(ran: CommandResult) -> str:
    assert "Traceback" not in ran.err
    return ran.err.splitlines()[-1]


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """Return a folder that every user can reach; the folders of pytest are private."""
    folder = Path(tempfile.mkdtemp(prefix="topicsd-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def theirs(shared_folder: Path) -> Path:
    """Return a complete data directory of an unprivileged user."""
    path = shared_folder / "data"
    create_data_dir(RealFs(), str(path), 2, os.urandom(16))
    for one in (path, *path.rglob("*")):
        os.chown(one, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
    return path


def test_a_directory_with_other_things_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).write_text("mine")
    ran = serve(tmp_path)
    assert ran.code == 2
    assert sentence(ran) == (
        f"topicsd: {tmp_path} is not empty and not a data directory: it holds a, b, c, ... and no "
        f"LAYOUT.json; use an empty directory, for example --data-dir {tmp_path}/topics-data"
    )
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c", "d"]


def test_an_empty_disk_and_an_interrupted_start_are_accepted(tmp_path: Path) -> None:
    for name in ("lost+found", "shards", "shards/00", "shards/00/wal"):
        (tmp_path / name).mkdir()
    for name in ("LOCK", "LAYOUT.json.tmp"):
        (tmp_path / name).write_text("")
    ran = serve(tmp_path, "--host=no such host")
    assert "not empty" not in ran.err
    from topicsd.cli.data_directory import refuse_unusable_directory

    refuse_unusable_directory(RealFs(), str(tmp_path))
    refuse_unusable_directory(RealFs(), str(tmp_path / "not there"))


def test_a_missing_layout_error_names_topicsd_doctor(tmp_path: Path) -> None:
    create_data_dir(RealFs(), str(tmp_path), 1, os.urandom(16))
    (tmp_path / "LAYOUT.json").unlink()
    (tmp_path / "shards/00/wal/wal-0000000000000001.log").write_bytes(b"x")
    ran = serve(tmp_path)
    assert ran.code == 1
    assert "LAYOUT.json" in sentence(ran)
    assert f"topicsd doctor {tmp_path}" in sentence(ran)


def test_a_file_in_the_place_of_the_directory_is_called_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    for given in (path, path / "below"):
        ran = serve(given)
        assert ran.code == 2
        assert sentence(ran) == f"topicsd: {path} is a file, not a directory"


def test_an_empty_path_is_called_empty() -> None:
    ran = run_here("serve", "--data-dir", "")
    assert ran.code == 2
    assert sentence(ran) == "topicsd: --data-dir='': must not be empty"


def test_a_parent_that_cannot_hold_a_directory_is_named() -> None:
    ran = serve("/proc/topics")
    assert ran.code == 2
    assert sentence(ran) == (
        "topicsd: cannot create /proc/topics: No such file or directory: "
        "the file system of /proc rejects new directories"
    )


@needs_root
@pytest.mark.slow
def test_a_directory_that_cannot_be_made_names_owner_mode_and_user(shared_folder: Path) -> None:
    ran = serve_unprivileged(shared_folder / "data")
    assert ran.code == 2
    assert sentence(ran) == (
        f"topicsd: cannot create {shared_folder}/data: Permission denied: {shared_folder} is owned by "
        f"root (uid 0), mode 0755, and this process runs as {user_name(UNPRIVILEGED_ID)}"
    )


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize(
    "path", ["LOCK", "shards/00/LOCK", "shards/01/wal", "shards/01/meta/snapshot.00000001.bin", "."]
)
def test_a_directory_of_another_user_is_named_with_owner_mode_and_user(theirs: Path, path: str) -> None:
    if not (theirs / path).exists():
        (theirs / path).write_bytes(b"")
        (theirs / path).chmod(0o640)
    os.chown(theirs / path, 0, 0)
    named = os.path.normpath(theirs / path)
    mode = f"{os.stat(named).st_mode & 0o7777:04o}"
    ran = serve_unprivileged(theirs)
    assert ran.code == 2
    assert re.fullmatch(
        rf"topicsd: {re.escape(named)}: [Pp]ermission denied: it is owned by root \(uid 0\), "
        rf"mode {mode}, and this process runs as {re.escape(user_name(UNPRIVILEGED_ID))}",
        sentence(ran),
    )


@needs_root
@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("inspect", []),
        ("inspect", ["--checkpoint"]),
        ("verify", []),
        ("doctor", []),
        ("doctor", ["--repair"]),
    ],
)
def test_offline_commands_name_owner_mode_and_user(theirs: Path, command: str, flags: list[str]) -> None:
    meta = theirs / "shards/00/meta"
    os.chown(meta, 0, 0)
    meta.chmod(0o700)
    ran = run_unprivileged(command, str(theirs), *flags)
    assert ran.code in (1, 2)
    text = " ".join((ran.out + ran.err).split())
    assert str(meta) in text
    assert "is owned by root (uid 0), mode 0700, and this process runs as" in text


@pytest.mark.slow
def test_a_read_only_file_system_is_detected_at_the_start(shared_folder: Path) -> None:
    data_dir = shared_folder / "data"
    create_data_dir(RealFs(), str(data_dir), 1, os.urandom(16))
    wal = data_dir / "shards/00/wal"
    mount = f"mount --bind {wal} {wal} && mount -o remount,bind,ro {wal}"
    before = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace can be made here")
    line = [*before, *command_line("serve", "--port=0", f"--data-dir={data_dir}")]
    ran = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1] == f"topicsd: {wal}: the file system is mounted read-only"


def test_a_path_that_is_allowed_has_no_denial(tmp_path: Path) -> None:
    assert access_problem(str(tmp_path)) is None
    assert denial_of(str(tmp_path)) == ""
    assert denial_of(str(tmp_path / "new")) == ""
