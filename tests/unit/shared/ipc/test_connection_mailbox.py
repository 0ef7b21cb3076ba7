"""A connection arrives at the shard it was sent to, or the sender keeps it."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator

import pytest

from shared.ipc.connection_mailbox import ConnectionReceiver, ConnectionSender
from shared.ipc.handoff import DATA_BYTES_MAX
from shared.ipc.link import address_of


@pytest.fixture
def instance() -> str:
    return secrets.token_hex(8)


@pytest.fixture
def sender(instance: str) -> Iterator[ConnectionSender]:
    made = ConnectionSender(instance)
    yield made
    made.close()


@pytest.fixture
def receiver(instance: str) -> Iterator[ConnectionReceiver]:
    made = ConnectionReceiver(instance, 1)
    yield made
    made.close()


def test_a_connection_arrives_with_the_bytes_already_read(
    sender: ConnectionSender, receiver: ConnectionReceiver
) -> None:
    for data in (b"", b"GET / HTTP/1.1\r\n", b"x" * DATA_BYTES_MAX):
        client, server = socket.socketpair()
        assert sender.send_connection_to(1, server.fileno(), data)
        server.close()
        (handed,) = receiver.receive()
        assert handed.data == data
        with socket.socket(fileno=handed.fd) as moved:
            client.sendall(b"hello")
            assert moved.recv(10) == b"hello"
            moved.sendall(b"here")
            assert client.recv(10) == b"here"
        client.close()
    assert receiver.receive() == []


def test_the_sender_keeps_a_connection_that_the_shard_cannot_receive(
    instance: str, sender: ConnectionSender
) -> None:
    client, server = socket.socketpair()
    assert not sender.send_connection_to(1, server.fileno(), b"")
    full = ConnectionReceiver(instance, 1)
    taken = 0
    while sender.send_connection_to(1, server.fileno(), b"x"):
        taken += 1
        assert taken < 1000
    assert taken > 0
    full.close()
    assert not sender.send_connection_to(1, server.fileno(), b"")
    # Closing the receiver closes the copies in flight; ours stays open.
    server.sendall(b"still here")
    assert client.recv(100) == b"still here"
    client.close()
    server.close()


def test_a_receiver_has_one_owner_until_it_is_closed(instance: str) -> None:
    first = ConnectionReceiver(instance, 3)
    with pytest.raises(OSError, match="in use"):
        ConnectionReceiver(instance, 3)
    first.close()
    ConnectionReceiver(instance, 3).close()


def test_a_connection_from_another_user_is_closed(
    monkeypatch: pytest.MonkeyPatch, sender: ConnectionSender, receiver: ConnectionReceiver
) -> None:
    uid = os.getuid()
    client, server = socket.socketpair()
    assert sender.send_connection_to(1, server.fileno(), b"x")
    server.close()
    monkeypatch.setattr("shared.ipc.connection_mailbox.os.getuid", lambda: uid + 1)
    assert receiver.receive() == []
    assert client.recv(1) == b""
    client.close()


def test_a_message_without_a_connection_is_ignored(instance: str, receiver: ConnectionReceiver) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        for data in (b"", b"x"):
            stranger.sendto(data, address_of(instance, "1/mailbox"))
    assert receiver.receive() == []
