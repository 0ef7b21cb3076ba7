"""The systemd units, checked by systemd itself and against the behaviour of the server."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shared.settings.serving import DRAIN_MAX
from shared.settings.settings import DECLARED

PROJECT = Path(__file__).parents[2]
SERVICE = PROJECT / "systemd" / "topicsd.service"
SOCKET = PROJECT / "systemd" / "topicsd.socket"

needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here (package systemd)"
)


def values(unit: Path, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
@needs_analyze
def test_the_service_is_exposed_to_little() -> None:
    judged = analyze("security", "--offline=true", "--threshold=25", "--no-pager", SERVICE)
    assert judged.returncode == 0, judged.stdout[-300:]


@pytest.mark.slow
@needs_analyze
def test_systemd_understands_every_line(tmp_path: Path) -> None:
    for unit in (SERVICE, SOCKET):
        text = unit.read_text(encoding="utf-8").replace("/opt/topicsd/.venv/bin/topicsd", sys.executable)
        (tmp_path / unit.name).write_text(text)
    judged = analyze("verify", tmp_path / SERVICE.name, tmp_path / SOCKET.name)
    assert (judged.returncode, judged.stderr.strip()) == (0, "")


def test_a_reload_asks_for_the_keys_to_be_read_again() -> None:
    assert values(SERVICE, "ExecReload") == ["kill -HUP $MAINPID"]


def test_systemd_waits_longer_than_the_longest_drain() -> None:
    (seconds,) = values(SERVICE, "TimeoutStopSec")
    assert int(seconds) > DRAIN_MAX


def test_a_start_with_a_permanent_error_is_not_retried() -> None:
    assert values(SERVICE, "Type") == ["notify"]
    assert values(SERVICE, "Restart") == ["on-failure"]
    assert values(SERVICE, "RestartPreventExitStatus") == ["2"]


def test_the_units_agree_with_the_defaults_of_the_server() -> None:
    defaults = {field.name: field.default for field in DECLARED}
    assert values(SOCKET, "ListenStream") == [f"{defaults['host']}:{defaults['port']}"]
    known = {field.variable for field in DECLARED}
    assert {one.partition("=")[0] for one in values(SERVICE, "Environment")} <= known


def test_the_log_can_read_what_it_needs_of_proc() -> None:
    # It would hide /proc/sys/kernel/random/boot_id.
    assert values(SERVICE, "ProcSubset") == []


@pytest.mark.slow
def test_the_server_runs_without_memory_that_is_writable_and_executable() -> None:
    """Set what MemoryDenyWriteExecute= sets on a process that loads every module."""
    program = (
        "import ctypes, sys\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.prctl(65, 1, 0, 0, 0): sys.exit(77)\n"
        "import asyncio, msgspec, uvloop, xxhash, ssl, topicsd.worker.worker\n"
        "uvloop.run(asyncio.sleep(0))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("this kernel has no PR_SET_MDWE, so the rule of the unit cannot be tried here")
    assert done.returncode == 0, done.stderr
