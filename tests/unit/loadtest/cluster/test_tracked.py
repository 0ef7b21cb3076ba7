from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from loadtest.clients.processes import start_time
from loadtest.cluster.run_folder import RunFolder, new_run, write_json
from loadtest.cluster.scenario import make_scenario
from loadtest.cluster.stack.cluster_stack import Stack, ended_on_error, read_stack, status, stop_stack
from loadtest.cluster.stack.tracked import RUN_VARIABLE, Tracked, end_leftovers, leftovers, start, stop

pytestmark = pytest.mark.slow

SLEEP = "import time; time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); {SLEEP}"
CHILD = (
    "import subprocess, sys\n"
    f"print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}]).pid, flush=True)\n"
    f"{SLEEP}"
)


def started(tmp_path: Path, code: str, run: Path | None = None) -> Tracked:
    environ = {**os.environ, RUN_VARIABLE: str(run or tmp_path)}
    return start("one", [sys.executable, "-c", code], tmp_path / "log", environ)


def output(tracked: Tracked) -> str:
    until = time.monotonic() + 10
    while not (text := Path(tracked.log).read_text()):
        assert time.monotonic() < until
        time.sleep(0.01)
    return text


def test_a_process_is_ended_by_its_pid_and_start_time(tmp_path: Path) -> None:
    tracked = started(tmp_path, SLEEP)
    assert tracked.is_alive
    assert stop(tracked) == "ended"
    assert not tracked.is_alive
    assert stop(tracked) == "gone"


def test_another_process_with_the_pid_is_left_alone(tmp_path: Path) -> None:
    tracked = started(tmp_path, SLEEP)
    other = msgspec.structs.replace(tracked, start_time="1")
    assert not other.is_alive
    assert stop(other) == "replaced"
    assert tracked.is_alive
    assert stop(tracked) == "ended"


def test_a_process_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    tracked = started(tmp_path, STUBBORN)
    output(tracked)
    assert stop(tracked, seconds=0.2) == "killed"
    assert start_time(tracked.pid) is None


def test_descendants_end_with_the_process(tmp_path: Path) -> None:
    tracked = started(tmp_path, CHILD)
    child = int(output(tracked))
    assert start_time(child) is not None
    stop(tracked)
    assert ended(child)


def test_what_is_left_of_a_run_is_found_and_ended(tmp_path: Path) -> None:
    tracked, other = started(tmp_path, CHILD), started(tmp_path, SLEEP, tmp_path / "other")
    child = int(output(tracked).split()[0])
    os.kill(tracked.pid, signal.SIGKILL)
    assert ended(tracked.pid)
    assert list(leftovers(tmp_path)) == [child]
    assert end_leftovers(tmp_path) == [child]
    assert ended(child)
    assert stop(other) == "ended"


def ended(pid: int) -> bool:
    until = time.monotonic() + 10
    while start_time(pid) is not None:
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def test_ctrl_c_during_a_start_leaves_no_process(tmp_path: Path) -> None:
    folder = new_run(make_scenario({"name": "interrupted"}), tmp_path)
    tracked = started(tmp_path, SLEEP, folder.path)
    write_json(folder.stack, Stack(run=str(folder.path), processes=[tracked]))
    assert status(folder)["processes"]["one"]["state"] == "alive"
    with pytest.raises(KeyboardInterrupt):
        interrupt(folder)
    assert not tracked.is_alive
    assert read_stack(folder).processes == []


def interrupt(folder: RunFolder) -> None:
    with ended_on_error(folder):
        raise KeyboardInterrupt


def test_a_process_outlives_the_command_that_started_it_and_another_one_ends_it(tmp_path: Path) -> None:
    folder = new_run(make_scenario({"name": "apart"}), tmp_path)
    code = (
        "import os, sys; from pathlib import Path\n"
        "from loadtest.cluster.run_folder import RunFolder, write_json\n"
        "from loadtest.cluster.stack.cluster_stack import Stack\n"
        "from loadtest.cluster.stack.tracked import start\n"
        "folder = RunFolder(Path(sys.argv[1]))\n"
        f"one = start('one', [sys.executable, '-c', {SLEEP!r}], folder.logs / 'one.log', os.environ)\n"
        "write_json(folder.stack, Stack(run=str(folder.path), processes=[one]))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(folder.path)], check=True)
    (tracked,) = read_stack(folder).processes
    assert tracked.is_alive
    assert stop_stack(folder) == {"one": "ended"}
    assert not tracked.is_alive
