"""The named keys: creation, change, rotation and revocation, by requests of clients with the scope admin.

M1  A change is durable, then in use in every process that serves, then answered; the secret is in the answer
    and nowhere else. One change runs at a time.
M2  A key gives no rights that its caller does not have: its scopes are among those of the caller, and keys
    with prefixes manage none.
M3  A server never loses its last key with the scope admin for all names, nor the last such key that can give
    another scope, and never opens (`_refuse_loss`).
M4  The first key of a server without keys closes it to all other clients. So it must be able to manage keys,
    and the request must say that it wants this.
M5  A secret expires when this process notices, within a second of its time.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import msgspec

from router.supervision.key_reload import KeyReload
from shared.contract.api_keys import ADMIN, ALL_SCOPES, KEY_ID_DIGITS, SCOPES, WRONG_KEY, ApiKey
from shared.contract.errors import (
    FORBIDDEN,
    KEY_CONFLICT,
    NOT_FOUND,
    RETRY_AFTER_MS,
    STORAGE_FAILED,
    THROTTLED,
    Refusal,
    reason_without_path,
)
from shared.ipc.key_file import KEYS_MAX, StoredKey, WriteKeys
from shared.ipc.key_request import KeyRequest
from shared.runtime.clock import Clock

logger = logging.getLogger(__name__)

SECRET_BYTES: Final = 32
# Sleep at most this long before the next look at the clock, which may be set.
LOOK_SECONDS: Final = 1.0

_NO_ADMIN: Final = Refusal(
    KEY_CONFLICT,
    "no other key has the scope admin for all names and does not expire: create one first, or rotate this "
    "one",
    {"reason": "last_admin_key"},
)


class NamedKeys:
    """`write` is None for a server without a directory, which forgets its named keys when it ends."""

    def __init__(self, reload: KeyReload, clock: Clock, write: WriteKeys | None) -> None:
        self._reload = reload
        self._clock = clock
        self._write = write
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._next_ms: int | None = None

    def start(self) -> None:
        """Begin to watch the expiry of keys."""
        self._next_ms = self._next_change_ms(self._clock.now_ms())
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def answer(self, request: KeyRequest) -> dict[str, object] | Refusal:
        keys = self._reload.keys
        caller = keys.by_id(request.key_id)
        if keys.are_required and caller is None:
            return WRONG_KEY
        if request.operation == "whoami":
            return self._whoami(caller, request.address)
        if caller is not None and caller.prefixes:
            return Refusal(FORBIDDEN, "keys are of all topics, and this key allows only some names")
        if request.operation == "list_keys":
            return self._list()
        if request.operation == "key_state":
            return self._state(request.name)
        async with self._lock:
            return await self._change(request, caller)

    # -- reading -------------------------------------------------------------------------------------------

    def _whoami(self, caller: ApiKey | None, address: str) -> dict[str, object]:
        if caller is None:
            return {"authentication": "off", "key": None, "scopes": list(SCOPES), "address": address}
        stored = self._stored(caller.name)
        shown: dict[str, object] = {"id": caller.id, "name": caller.name or None}
        if stored is None or not _has_id(stored, caller.id):
            shown["source"] = "configured"
        else:
            is_former = caller.id != stored.id
            expires_ms = stored.former_expires_ms if is_former else stored.expires_ms
            shown.update(source="api", expires_ms=expires_ms or None)
        scopes = [scope for scope in SCOPES if scope in caller.scopes]
        return {
            "authentication": "key",
            "key": shown,
            "scopes": scopes,
            "prefixes": list(caller.prefixes),
            "address": address,
        }

    def _list(self) -> dict[str, object]:
        configured = sorted(self._reload.configured, key=lambda key: (key.name, key.id))
        stored = sorted(self._reload.stored, key=lambda key: key.name)
        return {"keys": [*map(self._show, stored), *map(_show_configured, configured)]}

    def _state(self, name: str) -> dict[str, object] | Refusal:
        stored = self._stored(name)
        if stored is not None:
            return self._show(stored)
        configured = next((key for key in self._reload.configured if key.name == name), None)
        return _not_found(name) if configured is None else _show_configured(configured)

    def _show(self, key: StoredKey) -> dict[str, object]:
        now_ms = self._clock.now_ms()
        shown: dict[str, object] = {
            "name": key.name,
            "id": key.id,
            "source": "api",
            "scopes": list(key.scopes),
            "prefixes": list(key.prefixes),
            "created_ms": key.created_ms,
            "expires_ms": key.expires_ms or None,
            "expired": key.is_expired(now_ms),
        }
        if key.former_expires_ms > now_ms:
            shown["former"] = {"id": key.former_digest[:KEY_ID_DIGITS], "expires_ms": key.former_expires_ms}
        return shown

    def _stored(self, name: str) -> StoredKey | None:
        return next((key for key in self._reload.stored if key.name == name), None)

    # -- changing ------------------------------------------------------------------------------------------

    async def _change(self, request: KeyRequest, caller: ApiKey | None) -> dict[str, object] | Refusal:
        stored = self._stored(request.name)
        if any(key.name == request.name for key in self._reload.configured):
            message = f'key "{request.name}" is configured, so only the configuration can change it'
            return Refusal(KEY_CONFLICT, message, {"reason": "configured"})
        if request.operation == "delete_key":
            return await self._delete(request.name, stored)
        if request.operation == "rotate_key":
            return _not_found(request.name) if stored is None else await self._rotate(request, caller, stored)
        if stored is None:
            return await self._create(request, caller)
        return await self._put(request, caller, stored)

    async def _create(self, request: KeyRequest, caller: ApiKey | None) -> dict[str, object] | Refusal:
        if len(self._reload.stored) >= KEYS_MAX:
            message = f"no more keys can be created; a server has at most {KEYS_MAX} named keys"
            return Refusal(THROTTLED, message, {"limit": "keys", "max": KEYS_MAX}, RETRY_AFTER_MS)
        rights = ALL_SCOPES if caller is None else caller.scopes
        secret = _new_secret()
        key = StoredKey(
            name=request.name,
            digest=_digest(secret),
            scopes=tuple(scope for scope in SCOPES if scope in (request.scopes or rights)),
            prefixes=request.prefixes or (),
            created_ms=self._clock.now_ms(),
            expires_ms=request.expires_ms or 0,
        )
        refusal = _refuse_scopes(key, caller) or self._refuse_first(request, key)
        if refusal is not None:
            return refusal
        refusal = await self._save([*self._reload.stored, key])
        return refusal or {"created": True, **self._show(key), "key": secret}

    async def _put(
        self, request: KeyRequest, caller: ApiKey | None, stored: StoredKey
    ) -> dict[str, object] | Refusal:
        scopes = stored.scopes if request.scopes is None else request.scopes
        changed = msgspec.structs.replace(
            stored,
            scopes=tuple(scope for scope in SCOPES if scope in scopes),
            prefixes=stored.prefixes if request.prefixes is None else request.prefixes,
            expires_ms=stored.expires_ms if request.expires_ms is None else request.expires_ms,
        )
        refusal = (
            _refuse_scopes(stored, caller)
            or _refuse_scopes(changed, caller)
            or self._refuse_loss(stored.name, changed)
        )
        if refusal is not None:
            return refusal
        if changed != stored:
            refusal = await self._save(self._with(changed))
        return refusal or {"created": False, **self._show(changed)}

    async def _rotate(
        self, request: KeyRequest, caller: ApiKey | None, stored: StoredKey
    ) -> dict[str, object] | Refusal:
        refusal = _refuse_scopes(stored, caller)
        if refusal is not None:
            return refusal
        secret = _new_secret()
        rotated = msgspec.structs.replace(
            stored,
            digest=_digest(secret),
            former_digest=stored.digest,
            former_expires_ms=self._clock.now_ms() + request.overlap_ms,
        )
        refusal = await self._save(self._with(rotated))
        return refusal or {**self._show(rotated), "key": secret}

    async def _delete(self, name: str, stored: StoredKey | None) -> dict[str, object] | Refusal:
        if stored is None:
            return {"name": name, "deleted": False}
        refusal = self._refuse_loss(name, None)
        if refusal is None:
            refusal = await self._save([key for key in self._reload.stored if key.name != name])
        return refusal or {"name": name, "deleted": True}

    def _with(self, changed: StoredKey) -> list[StoredKey]:
        return [changed if key.name == changed.name else key for key in self._reload.stored]

    def _refuse_first(self, request: KeyRequest, key: StoredKey) -> Refusal | None:
        """Refuse a first key that is created by mistake, or that could not manage keys (M4)."""
        if self._reload.keys.are_required:
            return None
        if not request.requires_keys:
            message = (
                "require_keys: must be true to create the first key: every request needs a key from then on"
            )
            return Refusal(KEY_CONFLICT, message, {"field": "require_keys", "reason": "first_key"})
        if not _is_admin(key):
            message = "the first key must have the scope admin, no prefixes, and not expire"
            return Refusal(KEY_CONFLICT, message, {"reason": "first_key"})
        return None

    def _refuse_loss(self, name: str, changed: StoredKey | None) -> Refusal | None:
        """Refuse a change after which no key could give a scope (M3); None as `changed` is a deletion."""
        left = [key for key in self._reload.stored if key.name != name]
        scopes = self._scopes_to_give([*left, *([] if changed is None else [changed])])
        if ADMIN not in scopes:
            return _NO_ADMIN
        lost = self._scopes_to_give(self._reload.stored) - scopes
        return _scopes_lost([scope for scope in SCOPES if scope in lost]) if lost else None

    def _scopes_to_give(self, stored: Sequence[StoredKey]) -> frozenset[str]:
        """Return the scopes that these keys and the configured ones can give to a key, now and later."""
        configured = (key for key in self._reload.configured if ADMIN in key.scopes and not key.prefixes)
        return frozenset[str]().union(
            *(key.scopes for key in configured), *(key.scopes for key in stored if _is_admin(key))
        )

    async def _save(self, keys: Sequence[StoredKey]) -> Refusal | None:
        """Make the keys durable and use them everywhere (M1)."""
        if self._write is not None:
            try:
                await asyncio.to_thread(self._write, keys)
            except OSError as error:
                logger.error("keys: not changed: %s", error)
                reason = f"KEYS.json cannot be written: {reason_without_path(error)}"
                return Refusal(STORAGE_FAILED, f"{reason}; the change may be in use after a restart")
        await self._reload.change(keys)
        self._next_ms = self._next_change_ms(self._clock.now_ms())
        return None

    # -- expiry --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        now_ms = self._clock.now_ms()
        if self._next_ms is not None and self._next_ms <= now_ms:
            self._next_ms = self._next_change_ms(now_ms)
            logger.info("keys: a secret has expired")
            self._reload.apply()
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _next_change_ms(self, now_ms: int) -> int | None:
        times = [key.next_change_ms(now_ms) for key in self._reload.stored]
        return min((one for one in times if one is not None), default=None)


def _show_configured(key: ApiKey) -> dict[str, object]:
    scopes = [scope for scope in SCOPES if scope in key.scopes]
    prefixes = list(key.prefixes)
    return {
        "name": key.name or None,
        "id": key.id,
        "source": "configured",
        "scopes": scopes,
        "prefixes": prefixes,
    }


def _refuse_scopes(key: StoredKey, caller: ApiKey | None) -> Refusal | None:
    """Refuse a key with scopes that its caller lacks (M2)."""
    missing = [] if caller is None else [scope for scope in key.scopes if scope not in caller.scopes]
    if not missing:
        return None
    message = f"scopes: your key lacks {' and '.join(missing)}, so it cannot give it to a key"
    return Refusal(FORBIDDEN, message, {"field": "scopes", "scopes": missing})


def _scopes_lost(lost: list[str]) -> Refusal:
    message = (
        f"no other key with the scope admin for all names that does not expire has {' and '.join(lost)}, so "
        "no key could give it again: create such a key with this one first, or rotate this one"
    )
    return Refusal(KEY_CONFLICT, message, {"reason": "last_key_with_scopes", "scopes": lost})


def _is_admin(key: StoredKey) -> bool:
    """Return whether the key can manage keys, now and later."""
    return ADMIN in key.scopes and not key.prefixes and not key.expires_ms


def _has_id(key: StoredKey, key_id: str) -> bool:
    return key_id in (key.id, key.former_digest[:KEY_ID_DIGITS])


def _not_found(name: str) -> Refusal:
    return Refusal(NOT_FOUND, f'key "{name}" does not exist')


def _new_secret() -> str:
    return f"tk_{secrets.token_hex(SECRET_BYTES)}"


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()
