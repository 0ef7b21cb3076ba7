import pytest

from shared.contract import errors
from shared.contract.errors import STATUS, THROTTLED, Refusal


def test_every_code_has_a_status_and_is_declared_once() -> None:
    constants = {name: value for name, value in vars(errors).items() if name.isupper() and type(value) is str}
    assert sorted(constants.values()) == sorted(STATUS)
    assert all(name.lower() == value for name, value in constants.items())


def test_every_status_is_an_error_status() -> None:
    assert all(400 <= status <= 599 for status in STATUS.values())


def test_the_statuses_are_those_of_the_contract() -> None:
    codes_by_status: dict[int, set[str]] = {}
    for code, status in STATUS.items():
        codes_by_status.setdefault(status, set()).add(code)
    assert codes_by_status == {
        400: {"invalid_request", "batch_too_large", "record_too_large"},
        401: {"unauthorized"},
        403: {"forbidden"},
        404: {"topic_not_found", "router_not_found", "not_found"},
        405: {"method_not_allowed"},
        406: {"not_acceptable"},
        408: {"request_timeout"},
        409: {
            "router_cycle",
            "topic_exists_incompatible",
            "topic_not_empty",
            "not_a_queue",
            "idempotency_mismatch",
            "head_mismatch",
            "position_past_head",
            "producer_gap",
            "topic_moved",
            "topic_sealed",
            "topic_fenced",
            "key_conflict",
            "not_supported",
        },
        410: {"gone"},
        413: {"payload_too_large"},
        414: {"uri_too_long"},
        415: {"unsupported_media_type"},
        422: {"topic_full", "schema_mismatch"},
        426: {"upgrade_required"},
        429: {"throttled"},
        431: {"headers_too_large"},
        500: {"internal", "corrupt_segment"},
        501: {"not_implemented"},
        503: {
            "catalog_unavailable",
            "relocated",
            "not_ready",
            "shutting_down",
            "storage_failed",
            "store_unavailable",
        },
        504: {"in_doubt"},
        505: {"http_version_not_supported"},
        507: {"storage_full"},
    }


def test_a_refusal_is_a_value() -> None:
    one = Refusal(THROTTLED, "too much at once", {"limit": "max_topics"}, retry_after_ms=200)
    assert one == Refusal(THROTTLED, "too much at once", {"limit": "max_topics"}, 200)
    with pytest.raises(AttributeError):
        one.code = "gone"  # type: ignore[misc]


def test_a_code_that_is_not_in_the_table_is_an_assertion_error() -> None:
    with pytest.raises(AssertionError):
        Refusal("nonsense", "")
