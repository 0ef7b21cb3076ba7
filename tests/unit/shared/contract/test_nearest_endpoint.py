"""A path or a method that no endpoint has is answered with the endpoint that was probably meant."""

from __future__ import annotations

import pytest

from shared.contract.endpoints import ENDPOINTS, resolve
from shared.contract.errors import Refusal


def message(method: str, path: str) -> str:
    refusal = resolve(method, path)
    assert isinstance(refusal, Refusal), refusal
    return refusal.message


@pytest.mark.parametrize(
    ("method", "path", "nearest"),
    [
        ("GET", "/v1/topics/", "/v0/topics"),
        ("GET", "/api/v0/topics", "/v0/topics"),
        ("GET", "/TOPICS/Orders", "/v0/topics/Orders"),
        ("GET", "/v0/routes", "/v0/routers"),
        ("PUT", "/v0/routes/r", "/v0/routers/r"),
        ("GET", "/v0/queues/mails", "/v0/topics/mails"),
        ("POST", "/v0/topics/orders/difff", "/v0/topics/orders/diff"),
        ("POST", "/v0/topics/orders/publish", "/v0/topics/orders/records"),
        ("POST", "/v0/streams/orders/consume", "/v0/topics/orders/diff"),
        ("GET", "/v0/topics/orders/consume", "POST /v0/topics/orders/diff"),
        ("GET", "/v0/topics/orders/offsets/billing", "/v0/topics/orders/cursors/billing"),
        ("GET", "/v0/websocket", "/v0/ws"),
        ("GET", "/v0/status", "/v0/health"),
        ("POST", "/v0/topics/orders/diff/", "/v0/topics/orders/diff"),
    ],
)
def test_an_unknown_path_names_the_nearest_endpoint(method: str, path: str, nearest: str) -> None:
    assert message(method, path) == f"no endpoint at {path}, did you mean {nearest}?"


@pytest.mark.parametrize("path", ["/docs", "/favicon.ico", "/:", "/v0/version", "/x/y"])
def test_a_path_that_resembles_none_names_the_list(path: str) -> None:
    assert message("GET", path) == f"no endpoint at {path}; GET / lists the endpoints"


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        ("POST", "/v0/topics", "PUT /v0/topics/:topic creates a topic"),
        ("POST", "/v0/routers", "PUT /v0/routers/:router creates a route"),
        ("PATCH", "/v0/topics/orders", "PUT /v0/topics/:topic changes it"),
        ("GET", "/v0/watch", "POST /v0/watch creates a session"),
        ("DELETE", "/v0/topics/a/records/5", "POST /v0/topics/:topic/delete deletes records"),
        ("OPTIONS", "/v0/topics/a", "TOPICS_CORS_ORIGINS allows web pages of other origins"),
    ],
)
def test_a_method_that_a_path_does_not_have_names_the_one_for_it(method: str, path: str, hint: str) -> None:
    text = message(method, path)
    assert text.startswith(f"{method} is not allowed here, allowed: ")
    assert text.endswith(f"; {hint}")


def test_a_guess_is_an_endpoint() -> None:
    for endpoint in ENDPOINTS:
        path = endpoint.pattern.replace(":", "x")
        for wrong in (
            f"/api/v2{path.removeprefix('/v0')}",
            path.upper(),
            path.replace("/topics/", "/queues/"),
        ):
            refusal = resolve(endpoint.method, wrong)
            if isinstance(refusal, Refusal) and "did you mean " in refusal.message:
                guess = refusal.message.rpartition("did you mean ")[2].removesuffix("?")
                method, _, nearest = guess.rpartition(" ")
                assert not isinstance(resolve(method or endpoint.method, nearest), Refusal), refusal
