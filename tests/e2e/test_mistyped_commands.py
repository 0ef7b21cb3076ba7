"""Mistyped commands: the error message suggests the right one."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

import pytest

from tests.harness.output.command_run import run_here
from tests.harness.server.whole_server import WholeServer
from tests.unit.router.accept.test_listening import connects
from topicsd.cli.serve import refuse_interpreter
from topicsd.offline.command_error import CommandError

pytestmark = pytest.mark.usefixtures("alone")


def last_line(*arguments: object) -> str:
    ran = run_here(*arguments)
    assert ran.code == 2
    return ran.err.splitlines()[-1]


def test_help_and_version_are_commands_too() -> None:
    assert run_here("help") == run_here("--help")
    assert run_here("help", "serve") == run_here("serve", "--help")
    assert run_here("version") == run_here("--version")


def test_config_alone_shows_its_help() -> None:
    ran = run_here("config")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("usage: topicsd config")
    assert "topicsd config show" in ran.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("srve",), "topicsd: error: srve: unknown command, did you mean serve?"),
        (("help", "srve"), "topicsd: error: srve: unknown command, did you mean serve?"),
        (
            ("zzz",),
            "topicsd: error: zzz: unknown command; "
            "allowed: backup, cluster, compactor, config, doctor, help, inspect, reshard, serve, shards, "
            "store, topic, verify, version",
        ),
        (("serve", "--prot", "1"), "topicsd serve: error: unknown option --prot, did you mean --port?"),
        (
            ("serve", "--data_dir=x"),
            "topicsd serve: error: unknown option --data_dir, did you mean --data-dir?",
        ),
        (("serve", "here"), "topicsd serve: error: unexpected argument: here"),
        (("serve", "--port", "abc"), "topicsd: --port='abc': must be a whole number"),
        (("serve", "--port", "99999"), "topicsd: --port='99999': must be from 0 to 65535"),
        (("serve", "--probe-auth=yes"), "topicsd: --probe-auth='yes': must be true, false, 1 or 0"),
        (
            ("serve", "--log=topicsd.logg=debug"),
            "topicsd: --log='topicsd.logg=debug': topicsd.logg: unknown module, did you mean topicsd.log?",
        ),
    ],
)
def test_a_typing_error_is_answered_with_a_suggestion(arguments: tuple[str, ...], sentence: str) -> None:
    assert last_line(*arguments) == sentence


@pytest.mark.slow
def test_an_ipv6_address_is_accepted_and_logged_in_brackets(tmp_path: Path) -> None:
    with WholeServer(tmp_path, "--host=[::1]", shards=1, host="::1") as one:
        assert connects(one.port, "::1")
        log = one.log.read_text()
        assert f'"message":"server: listening","address":"[::1]:{one.port}"' in log
        assert '"address":"[::1]:0"' in log


@pytest.mark.slow
def test_a_taken_port_names_the_option(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = run_here("serve", f"--port={port}", f"--data-dir={tmp_path / 'data'}")
    assert ran.code == 1
    sentence = f"address in use: another program listens at 127.0.0.1:{port}; choose another port with --port"
    assert sentence in ran.err


@pytest.mark.slow
def test_a_client_that_speaks_tls_is_refused_at_once_and_logged_once(tmp_path: Path) -> None:
    hello = bytes.fromhex("160301020001") + bytes(500)
    with WholeServer(tmp_path, shards=1) as one:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", one.port), timeout=5) as client:
                client.sendall(hello)
                # A fatal alert: protocol_version.
                assert client.recv(100) == bytes.fromhex("15030100020246")
                assert client.recv(100) == b""
        log = one.log.read_text()
    assert log.count("connection: refused: the client sent TLS to a plain HTTP port") == 1


def test_an_interpreter_that_cannot_be_executed_is_one_error_line(tmp_path: Path) -> None:
    refuse_interpreter(sys.executable)
    path = tmp_path / "python"
    path.write_text("")
    path.chmod(0o600)
    for given, sentence in (
        (str(path), rf"cannot start workers: {path} cannot be executed: .*"),
        (
            str(tmp_path / "none"),
            rf"cannot start workers: {tmp_path}/none cannot be executed: it is missing; .*",
        ),
    ):
        with pytest.raises(CommandError) as refused:
            refuse_interpreter(given)
        assert re.fullmatch(sentence, str(refused.value))
    assert os.access(sys.executable, os.X_OK)
