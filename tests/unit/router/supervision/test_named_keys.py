"""Named keys: who may create, change, rotate and revoke them, and that no change locks or opens a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from router.supervision.key_reload import KeyReload
from router.supervision.named_keys import NamedKeys
from shared.contract.api_keys import ApiKey, ApiKeys, seal_api_keys, sent_key_of
from shared.contract.errors import Refusal
from shared.ipc.key_file import KEYS_MAX, StoredKey
from shared.ipc.key_request import KeyRequest
from shared.settings.settings import Settings
from tests.harness.machine.manual_clock import ManualClock

CONFIGURED = "the-configured-key"


class Server:
    """Named keys without processes: what is written and applied is noted."""

    def __init__(self, api_keys: str = "") -> None:
        self.clock = ManualClock()
        self.written: list[list[StoredKey]] = []
        self.is_disk_full = False
        self.reload = KeyReload(
            Settings(api_keys=seal_api_keys(api_keys)),
            list,
            lambda: "no settings",
            self._send,
            lambda text, version, keys: None,
            lambda owner: True,
            self.clock,
        )
        self.named = NamedKeys(self.reload, self.clock, self._write)

    @property
    def keys(self) -> ApiKeys:
        return self.reload.keys

    def ask(self, operation: str, name: str = "", secret: str = "", **more: Any) -> Any:
        """Send a request with the key of that secret; return the answer or the refusal."""
        key_id = "" if not secret else self.key_of(secret).id
        request = KeyRequest(operation, name, key_id, "127.0.0.1:5", **more)
        return asyncio.run(self.named.answer(request))

    def key_of(self, secret: str) -> ApiKey:
        key = self.allowed(secret)
        assert isinstance(key, ApiKey), key
        return key

    def allowed(self, secret: str) -> ApiKey | Refusal | None:
        return self.keys.check_sent(sent_key_of(b"Bearer " + secret.encode()), frozenset(), "")

    def first(self) -> str:
        """Create the first key, of an administrator; return its secret."""
        return str(self.ask("put_key", "root", requires_keys=True)["key"])

    async def _send(self, owner: int, version: int, api_keys: str) -> bool:
        return True

    def _write(self, keys: Sequence[StoredKey]) -> None:
        if self.is_disk_full:
            raise OSError(28, "No space left on device")
        self.written.append(list(keys))


def refused(answer: Any, code: str, reason: str = "") -> str:
    """Return the message of a refusal with that code and reason."""
    assert isinstance(answer, Refusal), answer
    assert answer.code == code
    if reason:
        assert (answer.detail or {})["reason"] == reason
    return answer.message


def test_the_first_key_is_created_on_purpose_and_manages_keys() -> None:
    server = Server()
    assert "require_keys: must be true" in refused(server.ask("put_key", "a"), "key_conflict", "first_key")
    for rights in ({"scopes": ("read", "write")}, {"prefixes": ("orders.",)}, {"expires_ms": 1 << 50}):
        answer = server.ask("put_key", "a", requires_keys=True, **rights)
        refused(answer, "key_conflict", "first_key")
    assert not server.keys.are_required
    assert server.written == []
    secret = server.first()
    assert server.keys.are_required
    assert server.key_of(secret).scopes == {"read", "write", "delete", "admin"}
    refused(server.ask("put_key", "b"), "unauthorized")


def test_a_secret_is_in_one_answer_and_its_digest_in_the_file() -> None:
    server = Server()
    secret = server.first()
    (stored,) = server.written[-1]
    assert secret not in repr(stored)
    assert secret not in repr(server.ask("list_keys", secret=secret))
    assert "key" not in server.ask("put_key", "root", secret)


def test_a_key_gives_only_what_its_caller_has() -> None:
    server = Server(f"{CONFIGURED}:admin+read,bounded-key-of-orders:admin:orders.")
    secret = server.ask("put_key", "reader", CONFIGURED, scopes=("read",), prefixes=("orders.",))["key"]
    assert server.key_of(secret).prefixes == ("orders.",)
    message = refused(server.ask("put_key", "w", CONFIGURED, scopes=("read", "write")), "forbidden")
    assert "your key lacks write" in message
    # Without scopes, a new key has those of its caller.
    assert server.ask("put_key", "same", CONFIGURED)["scopes"] == ["read", "admin"]
    for operation in ("list_keys", "key_state", "put_key", "rotate_key", "delete_key"):
        refused(server.ask(operation, "reader", "bounded-key-of-orders"), "forbidden")


def test_a_caller_does_not_take_over_a_key_with_more_rights() -> None:
    server = Server(f"{CONFIGURED}:admin,the-key-of-everything")
    server.ask("put_key", "all", "the-key-of-everything")
    refused(server.ask("rotate_key", "all", CONFIGURED), "forbidden")
    refused(server.ask("put_key", "all", CONFIGURED, expires_ms=0), "forbidden")
    assert server.ask("delete_key", "all", CONFIGURED)["deleted"]


def test_the_last_administrator_stays() -> None:
    server = Server()
    secret = server.first()
    changes: list[tuple[str, dict[str, Any]]] = [
        ("delete_key", {}),
        ("put_key", {"scopes": ("read",)}),
        ("put_key", {"prefixes": ("orders.",)}),
        ("put_key", {"expires_ms": 1 << 50}),
    ]
    # A key that expires, or has prefixes, is no replacement.
    server.ask("put_key", "soon", secret, expires_ms=1 << 50)
    server.ask("put_key", "bounded", secret, prefixes=("a.",))
    for operation, more in changes:
        refused(server.ask(operation, "root", secret, **more), "key_conflict", "last_admin_key")
    other = server.ask("put_key", "other", secret)["key"]
    assert server.ask("delete_key", "root", secret) == {"name": "root", "deleted": True}
    assert isinstance(server.allowed(secret), Refusal)
    assert server.ask("delete_key", "root", other) == {"name": "root", "deleted": False}


def test_the_last_key_that_can_give_a_scope_stays() -> None:
    server = Server()
    secret = server.first()
    admin = server.ask("put_key", "admin", secret, scopes=("admin",))["key"]
    server.ask("put_key", "reader", secret, scopes=("admin", "read"))
    # These can give no key the scopes, or not for long.
    server.ask("put_key", "writer", secret, scopes=("write", "delete"))
    server.ask("put_key", "soon", secret, expires_ms=1 << 50)
    server.ask("put_key", "bounded", secret, prefixes=("a.",))
    changes: list[tuple[str, str, dict[str, Any]]] = [
        ("delete_key", admin, {}),
        ("put_key", secret, {"scopes": ("admin",)}),
        ("put_key", secret, {"prefixes": ("orders.",)}),
        ("put_key", secret, {"expires_ms": 1 << 50}),
    ]
    for operation, caller, more in changes:
        answer = server.ask(operation, "root", caller, **more)
        message = refused(answer, "key_conflict", "last_key_with_scopes")
        assert "has write and delete, so" in message
        assert message.endswith("create such a key with this one first, or rotate this one")
        assert answer.detail["scopes"] == ["write", "delete"]
    assert server.ask("put_key", "root", secret, scopes=("write", "delete", "admin"))["scopes"]
    server.ask("put_key", "heir", secret, scopes=("write", "delete", "admin"))
    assert server.ask("delete_key", "root", admin)["deleted"]


def test_a_scope_that_no_key_can_give_is_not_lost_and_a_configured_key_gives_all_of_its_own() -> None:
    server = Server(f"{CONFIGURED}:admin+read")
    server.ask("put_key", "same", CONFIGURED)
    assert server.ask("put_key", "same", CONFIGURED, scopes=("admin",))["scopes"] == ["admin"]
    assert server.ask("delete_key", "same", CONFIGURED)["deleted"]


def test_configured_keys_are_listed_and_not_changed() -> None:
    server = Server(f"{CONFIGURED},sha256-{'a' * 64}@billing:read:orders.")
    listed = server.ask("list_keys", secret=CONFIGURED)["keys"]
    assert [(one["name"], one["source"]) for one in listed] == [
        (None, "configured"),
        ("billing", "configured"),
    ]
    assert server.ask("key_state", "billing", CONFIGURED)["prefixes"] == ["orders."]
    for operation in ("put_key", "rotate_key", "delete_key"):
        refused(server.ask(operation, "billing", CONFIGURED), "key_conflict", "configured")


def test_both_secrets_work_during_the_overlap_of_a_rotation() -> None:
    server = Server(CONFIGURED)
    old = server.ask("put_key", "ci", CONFIGURED, scopes=("read",))["key"]
    rotated = server.ask("rotate_key", "ci", CONFIGURED, overlap_ms=60_000)
    assert rotated["former"]["id"] == server.key_of(old).id
    assert server.key_of(old).scopes == server.key_of(rotated["key"]).scopes == {"read"}
    assert server.ask("whoami", secret=old)["key"]["expires_ms"] == server.clock.now_ms() + 60_000
    server.clock.advance(60_000)
    asyncio.run(apply(server))
    assert refused(server.allowed(old), "unauthorized") == "the key has expired"
    assert server.key_of(rotated["key"]).name == "ci"
    # Without an overlap, the former secret ends at once.
    last = server.ask("rotate_key", "ci", CONFIGURED)["key"]
    refused(server.allowed(rotated["key"]), "unauthorized")
    assert server.key_of(last).name == "ci"
    refused(server.ask("rotate_key", "absent", CONFIGURED), "not_found")


async def apply(server: Server) -> None:
    server.reload.apply()


def test_a_key_expires_and_lives_again_when_its_expiry_is_removed() -> None:
    server = Server(CONFIGURED)
    at_ms = server.clock.now_ms() + 5000
    secret = server.ask("put_key", "ci", CONFIGURED, expires_ms=at_ms)["key"]
    server.clock.advance(4900)
    asyncio.run(apply(server))
    assert server.key_of(secret).name == "ci"
    server.clock.advance(100)
    asyncio.run(apply(server))
    assert refused(server.allowed(secret), "unauthorized") == "the key has expired"
    assert server.ask("key_state", "ci", CONFIGURED)["expired"]
    server.ask("put_key", "ci", CONFIGURED, expires_ms=0)
    assert server.key_of(secret).name == "ci"


def test_a_server_whose_keys_have_all_expired_stays_closed() -> None:
    server = Server()
    secret = server.first()
    (root,) = server.reload.stored
    server.reload.stored = (
        StoredKey(**{**{f: getattr(root, f) for f in root.__struct_fields__}, "expires_ms": 1}),
    )
    asyncio.run(apply(server))
    assert server.keys.are_required
    refused(server.allowed(secret), "unauthorized")
    refused(server.ask("put_key", "b", requires_keys=True), "unauthorized")


def test_what_cannot_be_written_is_not_used() -> None:
    server = Server(CONFIGURED)
    secret = server.ask("put_key", "ci", CONFIGURED)["key"]
    server.is_disk_full = True
    refused(server.ask("put_key", "other", CONFIGURED), "storage_failed")
    refused(server.ask("delete_key", "ci", CONFIGURED), "storage_failed")
    assert server.key_of(secret).name == "ci"
    assert [key.name for key in server.reload.stored] == ["ci"]


def test_the_number_of_keys_is_bounded() -> None:
    server = Server(CONFIGURED)
    server.reload.stored = tuple(
        StoredKey(name=f"k{number}", digest=f"{number:064x}", scopes=("read",), created_ms=1)
        for number in range(KEYS_MAX)
    )
    message = refused(server.ask("put_key", "one-more", CONFIGURED), "throttled")
    assert f"at most {KEYS_MAX} named keys" in message


@pytest.mark.parametrize("is_keyed", [False, True])
def test_whoami_names_the_key_and_its_rights(is_keyed: bool) -> None:
    server = Server(CONFIGURED if is_keyed else "")
    answer = server.ask("whoami", secret=CONFIGURED if is_keyed else "")
    assert answer["authentication"] == ("key" if is_keyed else "off")
    assert answer["scopes"] == ["read", "write", "delete", "admin"]
    assert answer["address"] == "127.0.0.1:5"
    if is_keyed:
        assert answer["key"] == {"id": server.key_of(CONFIGURED).id, "name": None, "source": "configured"}
