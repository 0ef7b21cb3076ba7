"""`topicsd serve` where it must not start: each refusal is one error line and an exit code."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from shared.settings.settings import Settings
from tests.harness.output.command_run import run_command, run_here
from tests.harness.server.whole_server import WholeServer
from topicsd.cli.data_directory import lock_data_dir, open_data_layout
from topicsd.cli.serve import is_loopback, refuse_open_access
from topicsd.disk.dir_lock import DirLock
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import lock_path
from topicsd.offline.command_error import CommandError

pytestmark = pytest.mark.usefixtures("alone")


def test_a_second_server_on_a_directory_is_refused(tmp_path: Path) -> None:
    fs = RealFs()
    data_dir = str(tmp_path / "of" / "the" / "first")
    lock = lock_data_dir(fs, data_dir)
    try:
        ran = run_here("serve", "--data-dir", data_dir)
    finally:
        lock.release()
    assert ran.code == 1
    assert ran.err.splitlines()[-1] == f"topicsd: {data_dir}: in use by another server, process {os.getpid()}"
    # It created nothing there.
    assert os.listdir(data_dir) == ["LOCK"]
    DirLock(fs, lock_path(data_dir)).release()


@pytest.mark.slow
def test_a_second_server_on_a_busy_port_is_refused(tmp_path: Path) -> None:
    with WholeServer(tmp_path) as first:
        ran = run_command("serve", "--port=0", "--data-dir", tmp_path / "data")
        assert ran.code == 1
        assert f"{tmp_path / 'data'}: in use by another server, process {first.pid}" in ran.err
        assert first.stop() == 0
    with WholeServer(tmp_path):
        pass


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "10.0.0.1"])
def test_a_public_address_without_keys_is_refused_unless_allowed(host: str) -> None:
    ran = run_here("serve", "--host", host)
    assert ran.code == 2
    assert f"topicsd: {host} can be reached from other machines, and TOPICS_API_KEYS is not set" in ran.err
    assert not os.path.exists("topics-data")
    refuse_open_access(Settings(host=host, allow_insecure_no_auth=True), [])
    refuse_open_access(Settings(host=host, api_keys="a-key-of-some-length"), [])


def test_the_address_of_a_passed_socket_overrides_the_setting() -> None:
    refusal = r"0\.0\.0\.0 can be reached"
    with closing(socket.create_server(("0.0.0.0", 0))) as passed, pytest.raises(CommandError, match=refusal):
        refuse_open_access(Settings(), [passed])
    with closing(socket.create_server(("127.0.0.1", 0))) as passed:
        refuse_open_access(Settings(host="0.0.0.0"), [passed])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert is_loopback(host)


def test_an_unknown_host_is_reported() -> None:
    ran = run_here("serve", "--host", "no such host")
    assert ran.code == 2
    assert "cannot resolve host no such host: " in ran.err


def test_another_number_of_shards_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data_dir = str(tmp_path / "data")
    fs = RealFs()
    assert open_data_layout(fs, Settings(data_dir=data_dir, shards=3)).shards == 3
    assert open_data_layout(fs, Settings(data_dir=data_dir)).shards == 3
    assert caplog.text == ""
    assert open_data_layout(fs, Settings(data_dir=data_dir, shards=5)).shards == 3
    assert "TOPICS_SHARDS=5 ignored: this directory has 3 shards" in caplog.text


def test_a_damaged_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "LAYOUT.json").write_text("{}")
    ran = run_here("serve", "--data-dir", "data")
    assert ran.code == 1
    assert "LAYOUT.json: damaged" in ran.err


@pytest.mark.slow
def test_a_port_file_that_becomes_unwritable_is_one_error_line(tmp_path: Path) -> None:
    # No name is left for the temporary file beside it.
    port_file = tmp_path / ("p" * 250)
    ran = run_command(
        "serve", "--port=0", "--shards=1", "--data-dir", tmp_path / "d", "--port-file", port_file
    )
    assert ran.code == 1
    assert f"port file: cannot write {port_file}: File name too long" in ran.err
    assert "Traceback" not in ran.err


def test_a_catalog_in_a_missing_folder_is_refused_with_the_setting(tmp_path: Path) -> None:
    ran = run_here(
        "serve", "--data-dir", tmp_path / "data", "--catalog-url", f"sqlite://{tmp_path}/missing/c"
    )
    assert ran.code == 2
    assert ran.err.startswith(f"topicsd: TOPICS_CATALOG_URL: the catalog is a file in {tmp_path}/missing, ")
    assert "No such file or directory; create the folder" in ran.err
