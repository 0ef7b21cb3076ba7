from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from router.accept.listening import (
    ListenRefused,
    addresses_of,
    open_listeners,
    port_of,
    refuse_new,
    remove_port_file,
    write_port_file,
)


def connects(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("count", [1, 3])
def test_all_acceptors_listen_at_one_port(count: int) -> None:
    listeners = open_listeners("127.0.0.1", 0, count)
    ports = {listener.getsockname()[1] for listener in listeners}
    assert len(listeners) == count
    assert ports == {port_of(listeners)}
    assert connects(ports.pop())
    for listener in listeners:
        listener.close()


def test_each_listening_address_is_listed_once() -> None:
    listeners = open_listeners("127.0.0.1", 0, 2)
    port = port_of(listeners)
    assert addresses_of(listeners) == f"127.0.0.1:{port}"
    [other] = open_listeners("127.0.0.2", 0)
    assert addresses_of([*listeners, other]) == f"127.0.0.1:{port},127.0.0.2:{port_of([other])}"
    for listener in (*listeners, other):
        listener.close()


def test_a_second_server_fails_because_the_address_is_in_use() -> None:
    [listener] = open_listeners("127.0.0.1", 0)
    with pytest.raises(ListenRefused, match="address in use"):
        open_listeners("127.0.0.1", port_of([listener]))
    assert connects(port_of([listener]))
    listener.close()


def test_a_port_can_be_bound_while_old_connections_linger() -> None:
    [listener] = open_listeners("127.0.0.1", 0)
    port = port_of([listener])
    client = socket.create_connection(("127.0.0.1", port))
    accepted, _ = listener.accept()
    accepted.close()
    assert client.recv(1) == b""
    client.close()
    listener.close()
    [again] = open_listeners("127.0.0.1", port)
    assert port_of([again]) == port
    again.close()


def test_a_host_name_listens_where_most_clients_connect() -> None:
    [listener] = open_listeners("localhost", 0)
    assert connects(port_of([listener]))
    listener.close()


@pytest.mark.parametrize(
    ("host", "port"), [("192.0.2.1", 0), ("no.such.host.invalid", 0), ("a\udcff", 0), ("x" * 300, 0)]
)
def test_an_unusable_address_is_refused_with_a_sentence(host: str, port: int) -> None:
    with pytest.raises(ListenRefused):
        open_listeners(host, port)


def test_the_port_file_is_whole_and_can_be_removed_twice(tmp_path: Path) -> None:
    path = tmp_path / "port"
    for port in (1, 65535):
        write_port_file(str(path), port)
        assert path.read_text() == f"{port}\n"
    assert [one.name for one in tmp_path.iterdir()] == ["port"]
    remove_port_file(str(path))
    remove_port_file(str(path))
    assert not path.exists()


def test_a_closing_listener_accepts_waiting_clients_and_no_new_ones() -> None:
    [listener] = open_listeners("127.0.0.1", 0)
    address = ("127.0.0.1", port_of([listener]))
    with socket.create_connection(address) as early, socket.socket() as late:
        early.sendall(b"sent before the end")
        refuse_new(listener)
        late.setblocking(False)
        assert late.connect_ex(address) == errno.EINPROGRESS
        listener.setblocking(False)
        with listener.accept()[0] as accepted:
            assert accepted.recv(100) == b"sent before the end"
            early.sendall(b"and after it")
            assert accepted.recv(100) == b"and after it"
        with pytest.raises(BlockingIOError):
            listener.accept()
        # It has no connection of which a close would throw away what it sent.
        with pytest.raises(OSError, match="not connected"):
            late.getpeername()
        listener.close()
