from __future__ import annotations

from hashlib import sha256

import pytest

from shared.contract.api_keys import (
    ALL_SCOPES,
    KEY_PLACES,
    NAME_NOT_COVERED,
    NO_KEY,
    READ,
    WRITE,
    WRONG_KEY,
    ApiKey,
    ApiKeys,
    parse_keys,
    seal_api_keys,
)
from shared.contract.errors import STATUS, Refusal

KEY = "correct-horse-battery-staple"
OTHER = "another-key-of-some-length"
NOTHING: frozenset[str] = frozenset()


def is_allowed(keys: ApiKeys, scopes: str, name: str = "", key: str = KEY) -> bool:
    key_or_refusal = keys.check(b"Bearer " + key.encode(), frozenset(scopes.split()), name)
    assert key_or_refusal is not None
    return not isinstance(key_or_refusal, Refusal)


def test_without_keys_every_request_is_allowed() -> None:
    keys = parse_keys("")
    assert not keys.are_required
    assert keys.check(None, ALL_SCOPES, "a") is None
    assert keys.check(b"Bearer x", ALL_SCOPES, "a") is None
    assert keys.check_token("x", ALL_SCOPES, "a") is None


def test_a_key_without_scopes_and_prefixes_allows_everything() -> None:
    keys = parse_keys(KEY)
    assert len(keys) == 1
    key = keys.check(b"Bearer " + KEY.encode(), ALL_SCOPES, "a")
    assert isinstance(key, ApiKey)
    assert key[:3] == (sha256(KEY.encode()).hexdigest()[:8], ALL_SCOPES, ())


@pytest.mark.parametrize(
    ("scopes", "granted"),
    [
        ("", "read write delete admin"),
        ("read", "read"),
        ("r", "read"),
        ("w", "write"),
        ("d", "delete"),
        ("a", "admin"),
        ("rw", "read write"),
        ("rw+d", "read write delete"),
        ("read+write+delete+admin", "read write delete admin"),
    ],
)
def test_scopes_grant_exactly_what_they_name(scopes: str, granted: str) -> None:
    for text in (f"{KEY}:{scopes}", f"{KEY}:{scopes}:", seal_api_keys(f"{KEY}:{scopes}")):
        keys = parse_keys(text)
        assert {scope for scope in ALL_SCOPES if is_allowed(keys, scope)} == set(granted.split())
        assert is_allowed(keys, granted)
        assert is_allowed(keys, "")


def test_every_requested_scope_is_required() -> None:
    keys = parse_keys(f"{KEY}:write")
    refused = keys.check(b"Bearer " + KEY.encode(), frozenset({"read", "write", "admin"}), "")
    assert isinstance(refused, Refusal)
    assert STATUS[refused.code] == 403
    assert refused.message == "the key lacks the scope admin and read"


@pytest.mark.parametrize("text", [f"{KEY}::orders.|bills:eu", f"{KEY}:r+w+d+a:orders.|bills:eu"])
def test_prefixes_restrict_names(text: str) -> None:
    keys = parse_keys(text)
    assert is_allowed(keys, "read", "orders.eu")
    assert is_allowed(keys, "read", "bills:eu:1")
    assert not is_allowed(keys, "read", "orders")
    assert not is_allowed(keys, "read", "bills")
    assert not is_allowed(keys, "read", "my-orders.eu")
    # A request about several names: the handler filters them.
    assert is_allowed(keys, "read", "")
    key = keys.check(b"Bearer " + KEY.encode(), NOTHING, "")
    assert isinstance(key, ApiKey)
    assert key.allows_name("orders.eu")
    assert not key.allows_name("other")


def test_the_refusal_of_a_name_does_not_depend_on_the_name() -> None:
    keys = parse_keys(f"{KEY}::orders.")
    answers = [keys.check(b"Bearer " + KEY.encode(), NOTHING, name) for name in ("bills", "no-such-topic")]
    assert answers == [NAME_NOT_COVERED, NAME_NOT_COVERED]


@pytest.mark.parametrize(
    "authorization", [b"Bearer " + KEY.encode(), b"bearer  " + KEY.encode(), b"BEARER " + KEY.encode()]
)
def test_the_scheme_is_case_insensitive(authorization: bytes) -> None:
    assert isinstance(parse_keys(KEY).check(authorization, ALL_SCOPES, "a"), ApiKey)


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        KEY.encode(),
        b"Basic " + KEY.encode(),
        b"Bearer " + KEY.encode() + b" x",
    ],
)
def test_a_request_without_a_key_is_challenged(authorization: bytes | None) -> None:
    assert parse_keys(KEY).check(authorization, NOTHING, "a") == NO_KEY
    assert STATUS[NO_KEY.code] == 401
    assert NO_KEY.detail is not None
    assert str(NO_KEY.detail["www_authenticate"]).startswith("Bearer")


@pytest.mark.parametrize("key", ["wrong", KEY[:-1], KEY + "x", KEY.upper(), "sha256-" + "0" * 64])
def test_a_wrong_key_is_refused(key: str) -> None:
    assert parse_keys(f"{OTHER},{KEY}").check(b"Bearer " + key.encode(), NOTHING, "a") == WRONG_KEY


def test_a_key_in_a_query_is_the_same_key() -> None:
    keys = parse_keys(f"{KEY}:read")
    assert isinstance(keys.check_token(KEY, frozenset({"read"}), "a"), ApiKey)
    assert keys.check_token("ümlaut", NOTHING, "") == WRONG_KEY
    assert keys.check_token("", NOTHING, "") == NO_KEY


def test_a_digest_sent_as_a_key_is_refused() -> None:
    digest = sha256(KEY.encode()).hexdigest()
    for sent in (digest, f"sha256-{digest}"):
        assert not is_allowed(parse_keys(KEY), "read", key=sent)
        assert not is_allowed(parse_keys(seal_api_keys(KEY)), "read", key=sent)


def test_sealed_keys_are_the_same_keys_and_seal_to_themselves() -> None:
    text = f"{KEY}:r+d:orders.|bills, {OTHER}::x, third-key-that-is-long"
    sealed = seal_api_keys(text)
    assert KEY not in sealed
    assert OTHER not in sealed
    assert seal_api_keys(sealed) == sealed
    for key in (KEY, OTHER):
        authorization = b"Bearer " + key.encode()
        assert parse_keys(sealed).check(authorization, NOTHING, "") == parse_keys(text).check(
            authorization, NOTHING, ""
        )
    assert seal_api_keys("") == ""


def test_keys_do_not_reveal_a_key() -> None:
    keys = parse_keys(KEY)
    assert KEY not in repr(keys) + repr(vars(keys))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{KEY}:raed", "entry 1: unknown scope"),
        (f"{OTHER}, {KEY}:read,write", ""),
        (f"{OTHER},{KEY}:read write", "entry 2: unknown scope"),
        (f"{KEY}:read+", "entry 1: unknown scope"),
        (f"{KEY}:READ", "entry 1: unknown scope"),
        (f"{KEY},", "entry 2: the key must not be empty"),
        (f"{KEY},,{OTHER}", "entry 2: the key must not be empty"),
        (" ", "entry 1: the key must not be empty"),
        (":read", "entry 1: the key must not be empty"),
        ("key with blanks", "entry 1: a key must consist of visible ASCII characters"),
        ("schlüssel-schlüssel", "entry 1: a key must consist of visible ASCII characters"),
        (f"{KEY}::a||b", "entry 1: prefix 2 must be the beginning of a valid name"),
        (f"{KEY}::a|b*", "entry 1: prefix 2 must be the beginning of a valid name"),
        (f"{KEY}::.a", "entry 1: prefix 1 must be the beginning of a valid name"),
        (f"{KEY},{OTHER},{KEY}:read", "entry 3: must not repeat the key of entry 1"),
        ("sha256-abc", "entry 1: sha256- must be followed by 64 lower-case hex digits"),
    ],
)
def test_a_wrong_entry_is_refused_by_its_number(text: str, message: str) -> None:
    if not message:
        # The comma ends an entry, so `write` is another key, though a weak one.
        assert len(parse_keys(text)) == 3
        return
    with pytest.raises(ValueError, match="entry") as raised:
        parse_keys(text)
    assert str(raised.value).startswith(message)
    assert KEY not in str(raised.value)
    assert OTHER not in str(raised.value)


def places(names: list[str]) -> dict[str, int]:
    keys = parse_keys(",".join(names))
    results = {name: keys.check(b"Bearer " + name.encode(), NOTHING, "") for name in names}
    return {name: key.place for name, key in results.items() if isinstance(key, ApiKey)}


def test_every_key_has_its_own_place_in_any_order() -> None:
    names = [f"key-number-{number}" for number in range(KEY_PLACES)]
    before = places(names)
    assert sorted(before.values()) == list(range(KEY_PLACES))
    assert places(names[::-1]) == before
    more = places([*names, "one-more"])
    assert len(more) == KEY_PLACES + 1
    assert set(more.values()) == set(range(KEY_PLACES))


def test_a_key_keeps_its_place_when_others_are_added_or_removed() -> None:
    names = [f"key-number-{number}" for number in range(10)]
    before = places(names)
    later = places([*names[1:], "another"])
    assert [later[name] for name in names[1:]] == [before[name] for name in names[1:]]


def test_a_key_is_checked_later_by_its_id() -> None:
    keys = parse_keys("a-key:r:orders.|bills.,other-key:w")
    key = keys.check(b"Bearer a-key", frozenset({READ}), "")
    assert isinstance(key, ApiKey)
    assert keys.allow(key.id, frozenset({READ}), ["orders.eu", "bills.1"])
    assert not keys.allow(key.id, frozenset({READ}), ["orders.eu", "private"])
    assert not keys.allow(key.id, frozenset({READ, WRITE}), ["orders.eu"])
    assert not keys.allow("", frozenset({READ}), []), "it was opened when there were no keys"
    assert parse_keys("").allow("", frozenset({READ}), ["orders.eu"])
