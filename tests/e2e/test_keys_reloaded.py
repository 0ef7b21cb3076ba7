"""API keys are reloaded on SIGHUP, in the supervisor and in current and later workers."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.harness.clients.event_client import EventClient, EventReader, H2Events
from tests.harness.clients.h2_client import H2Client
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow

OLD, NEW = "old-" + "k" * 32, "new-" + "k" * 32
# One path per shard, and one that the supervisor answers.
PATHS = [*(f"/v0/topics/t{number}" for number in range(8)), "/v0/topics"]


def status(server: WholeServer, path: str, key: str) -> int:
    return server.ask("GET", path, None, f"authorization: Bearer {key}").status


def knows(server: WholeServer, key: str) -> bool:
    return all(status(server, path, key) in (200, 404) for path in PATHS)


def knows_not(server: WholeServer, key: str) -> bool:
    return all(status(server, path, key) == 401 for path in PATHS)


def write(path: Path, text: str) -> None:
    path.write_text(text)


def reload_keys(server: WholeServer, line: str) -> None:
    """Send SIGHUP and wait until the log has another such line."""
    count = server.log.read_text().count(line)
    server.signal(signal.SIGHUP)
    server.wait_for(lambda: server.log.read_text().count(line) > count, line)


def test_a_new_key_replaces_the_old_one(tmp_path: Path) -> None:
    config = tmp_path / "topicsd.toml"
    write(config, f'api_keys = "{OLD}"\n')
    with WholeServer(tmp_path, "--config", str(config)) as server:
        assert knows(server, OLD)
        assert knows_not(server, NEW)

        write(config, f'api_keys = "{NEW}"\nport = 4999\n')
        reload_keys(server, "keys: reloaded")
        server.wait_for(lambda: knows_not(server, OLD), "the key counts everywhere")
        assert knows(server, NEW)
        # The flag overrides the port in the file.
        assert "restart to apply" not in server.log.read_text()

        for broken, line in (
            (f'api_keys = "{OLD}:raed"', "unknown scope"),
            ("api_keys = ", "is not valid TOML"),
            ('api_keys = ""', "the new settings have no keys"),
            (f'api_keys = "{OLD}"\nmax_limit = 0', "max_limit"),
        ):
            write(config, broken)
            reload_keys(server, line)
            assert knows(server, NEW)
            assert status(server, PATHS[0], OLD) == 401
        config.unlink()
        reload_keys(server, "No such file")
        assert knows(server, NEW)

        for shard in range(2):
            server.kill_worker(shard)
        server.wait_for(lambda: knows(server, NEW), "the key counts everywhere")
        assert knows_not(server, OLD)
        assert OLD not in server.log.read_text()
        assert NEW not in server.log.read_text()
        assert server.stop() == 0


def test_a_reload_without_a_file_is_logged(tmp_path: Path) -> None:
    with WholeServer(tmp_path, environ={"TOPICS_API_KEYS": OLD}) as server:
        reload_keys(server, "keys: not reloaded: no configuration file to reload")
        assert knows(server, OLD)
        assert "keys: reloaded" not in server.log.read_text()
        assert server.stop() == 0


def test_a_changed_setting_is_logged_as_needing_a_restart(tmp_path: Path) -> None:
    config = tmp_path / "topicsd.toml"
    write(config, f'api_keys = ["{OLD}"]\nmax_limit = 500\n')
    with WholeServer(tmp_path, "--config", str(config)) as server:
        assert knows(server, OLD)
        write(config, f'api_keys = ["{NEW}"]\nmax_limit = 600\n')
        reload_keys(server, "settings: changed, restart to apply: TOPICS_MAX_LIMIT")
        server.wait_for(lambda: knows(server, NEW), "the key counts everywhere")
        write(config, "api_keys = 5\n")
        # The redaction removes the key only.
        reload_keys(server, "api_keys: must be a text in quotes, or a list of them")


def test_a_stream_ends_with_its_key_in_every_process(tmp_path: Path) -> None:
    config = tmp_path / "topicsd.toml"
    write(config, f'api_keys = "{OLD}"\n')
    field = f"authorization: Bearer {OLD}"
    with WholeServer(tmp_path, "--config", str(config)) as server, H2Client(server.port) as client:

        def session(number: int) -> str:
            body = b'{"topics":{"t%d":{}}}' % number
            return str(client.ask("POST", "/v0/watch", body, field).json["stream_url"])

        streams: list[EventReader] = []
        for number in range(4):
            answer = client.ask("POST", f"/v0/topics/t{number}", b'{"records":[{"data":1}]}', field)
            assert answer.status == 201
            # One connection has streams of both shards.
            streams.append(H2Events(client, session(number), field))
            streams.append(EventClient(server.port, session(number), field).begin())
        for stream in streams:
            assert [stream.next().name, stream.next().name] == ["record", "caught-up"]
        write(config, f'api_keys = "{NEW}"\n')
        reload_keys(server, "keys: reloaded")
        for stream in streams:
            last = stream.next()
            assert (last.name, last.data["code"]) == ("error", "unauthorized")
            if isinstance(stream, EventClient):
                stream.close()
        assert server.stop() == 0
