"""Mailboxes: a connection arrives whole in the one it was put into, or stays with who has it."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator

import pytest

from shared.ipc.connection_mailbox import Mailbox, Postman
from shared.ipc.handoff import DATA_BYTES_MAX
from shared.ipc.link import address_of


@pytest.fixture
def instance() -> str:
    return secrets.token_hex(8)


@pytest.fixture
def postman(instance: str) -> Iterator[Postman]:
    made = Postman(instance)
    yield made
    made.close()


@pytest.fixture
def mailbox(instance: str) -> Iterator[Mailbox]:
    made = Mailbox(instance, 1)
    yield made
    made.close()


def test_a_connection_arrives_with_what_was_read_of_it(postman: Postman, mailbox: Mailbox) -> None:
    for data in (b"", b"GET / HTTP/1.1\r\n", b"x" * DATA_BYTES_MAX):
        client, server = socket.socketpair()
        assert postman.send_connection_to(1, server.fileno(), data)
        server.close()
        (handed,) = mailbox.receive()
        assert handed.data == data
        with socket.socket(fileno=handed.fd) as moved:
            client.sendall(b"hello")
            assert moved.recv(10) == b"hello"
            moved.sendall(b"here")
            assert client.recv(10) == b"here"
        client.close()
    assert mailbox.receive() == []


def test_a_shard_that_is_gone_or_full_leaves_the_connection_where_it_is(
    instance: str, postman: Postman
) -> None:
    client, server = socket.socketpair()
    assert not postman.send_connection_to(1, server.fileno(), b"")
    full = Mailbox(instance, 1)
    taken = 0
    while postman.send_connection_to(1, server.fileno(), b"x"):
        taken += 1
        assert taken < 1000
    assert taken > 0
    full.close()
    assert not postman.send_connection_to(1, server.fileno(), b"")
    # The copies that were under way are closed with the mailbox; ours is not.
    server.sendall(b"still here")
    assert client.recv(100) == b"still here"
    client.close()
    server.close()


def test_a_mailbox_has_one_owner_and_the_next_when_it_is_gone(instance: str) -> None:
    first = Mailbox(instance, 3)
    with pytest.raises(OSError, match="in use"):
        Mailbox(instance, 3)
    first.close()
    Mailbox(instance, 3).close()


def test_what_another_user_sends_is_closed(
    monkeypatch: pytest.MonkeyPatch, postman: Postman, mailbox: Mailbox
) -> None:
    uid = os.getuid()
    client, server = socket.socketpair()
    assert postman.send_connection_to(1, server.fileno(), b"x")
    server.close()
    monkeypatch.setattr("shared.ipc.connection_mailbox.os.getuid", lambda: uid + 1)
    assert mailbox.receive() == []
    assert client.recv(1) == b""
    client.close()


def test_a_message_without_a_connection_is_nothing(instance: str, mailbox: Mailbox) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        for data in (b"", b"x"):
            stranger.sendto(data, address_of(instance, "1/mailbox"))
    assert mailbox.receive() == []
