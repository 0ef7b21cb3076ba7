from __future__ import annotations

import io
import json
import logging
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from shared.runtime.log_setup import fields, redact, set_up_logging
from tests.harness.server.logging_state import preserve_logging

SECRET = "hush-hush-hush"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    with preserve_logging():
        yield


def logged(stream: io.StringIO) -> list[Any]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_file_gets_one_json_object_per_event() -> None:
    out = io.StringIO()
    set_up_logging("info", "worker-03", out)
    logging.getLogger("topicsd.log").warning(
        "the disk is slow:\n%d ms", 812, extra=fields(shard=3, path="/x y")
    )
    (line,) = logged(out)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("ts"))
    assert isinstance(line.pop("pid"), int)
    assert line == {
        "level": "warning",
        "process": "worker-03",
        "module": "topicsd.log",
        "message": "the disk is slow:\n812 ms",
        "shard": 3,
        "path": "/x y",
    }


def test_a_terminal_gets_one_line_of_text_per_event() -> None:
    out = Terminal()
    set_up_logging("info", "front", out)
    logging.getLogger("router.accept.connection_router").info(
        "listening\x1b[2J\nhere", extra=fields(port=4000, cause="a b")
    )
    (line,) = out.getvalue().splitlines()
    assert line.endswith(
        r'Z INFO    front router.accept.connection_router: listening\x1b[2J\nhere  port=4000  cause="a b"'
    )


@pytest.mark.parametrize("stream_type", [io.StringIO, Terminal])
def test_a_traceback_is_part_of_its_line(stream_type: type[io.StringIO]) -> None:
    out = stream_type()
    set_up_logging("info", "front", out)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("a").exception("failed", extra=fields(request_id="r1"))
    (line,) = out.getvalue().splitlines()
    assert "ValueError: two" in line
    assert "r1" in line


def test_each_module_has_its_own_level() -> None:
    out = io.StringIO()
    set_up_logging("warning,topicsd.log=debug", "front", out)
    logging.getLogger("topicsd.engine").info("not this")
    logging.getLogger("topicsd.log.writer").debug("this")
    set_up_logging("warning", "front", out)
    logging.getLogger("topicsd.log.writer").debug("nor this")
    assert [line["message"] for line in logged(out)] == ["this"]


@pytest.mark.parametrize("stream_type", [io.StringIO, Terminal])
def test_no_secret_is_logged(stream_type: type[io.StringIO]) -> None:
    out = stream_type()
    set_up_logging("debug", "front", out)
    log = logging.getLogger("a")
    log.info("authorization: Bearer %s", SECRET)
    log.info("GET /v0/watch/w?token=%s&x=1", SECRET)
    log.info("fields", extra=fields(header=b"bearer " + SECRET.encode(), url=f"/?token={SECRET}"))
    log.info("nested", extra=fields(headers={"authorization": f"Bearer {SECRET}"}))
    log.info("TOPICS_API_KEYS=%s:read", SECRET)
    log.info("%s", {"api_keys": SECRET})
    try:
        raise ValueError(f"Bearer {SECRET}")
    except ValueError:
        log.exception("with a traceback")
    assert SECRET not in out.getvalue()
    lines = out.getvalue().splitlines()
    assert len(lines) == 7
    assert all("[redacted]" in line for line in lines)


def test_text_that_is_not_secret_is_unchanged() -> None:
    problem = "topicsd.toml: api_keys: entry 2: the key must not be empty"
    advice = "TOPICS_API_KEYS: the key of entry 1 is shorter than 16 characters and might be guessed"
    for text in ("the bearer", "next_token=5", "a token is needed", "x=1&y=2", problem, advice):
        assert redact(text) == text


def test_values_that_json_cannot_encode_are_still_logged() -> None:
    out = io.StringIO()
    set_up_logging("info", "front", out)
    log = logging.getLogger("a")
    log.info("path \udce9", extra=fields(path="caf\udce9"))
    log.info("object", extra=fields(thing=object, message="mine"))
    log.info("no argument for %d", "it")
    first, second, third = logged(out)
    assert first["path"] == "caf\\udce9"
    assert second["thing"] == "<class 'object'>"
    assert (second["message"], second["message_"]) == ("object", "mine")
    assert third["message"] == "no argument for %d"


def test_a_closed_log_stream_does_not_stop_the_server() -> None:
    out = io.StringIO()
    set_up_logging("info", "front", out)
    out.close()
    logging.getLogger("a").info("into the void")


def test_an_uncaught_exception_is_one_line() -> None:
    out = io.StringIO()
    set_up_logging("info", "worker-00", out)
    error = ValueError("unexpected")
    sys.excepthook(ValueError, error, None)

    def fail() -> None:
        raise error

    thread = threading.Thread(target=fail, name="disk-00")
    thread.start()
    thread.join()
    whole, of_thread = logged(out)
    assert whole["level"] == "critical"
    assert "unexpected" in whole["exception"]
    assert "disk-00" in of_thread["message"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"api_keys = {SECRET}", "api_keys = [redacted]"),
        (f"TOPICS_API_KEYS={SECRET} x", "TOPICS_API_KEYS=[redacted] x"),
        (f"'api_keys': '{SECRET}'", "'api_keys': '[redacted]'"),
        (f"api_keys = ['{SECRET}', '{SECRET}2']", "api_keys = [redacted]"),
        ("a.toml: api_keys: must be a text in quotes", "a.toml: api_keys: must be a text in quotes"),
        ("api_keys: must not be empty", "api_keys: must not be empty"),
        ("api_keys: entry 2: must not contain a comma", "api_keys: entry 2: must not contain a comma"),
        ("api_keys: must-have-this-key", "api_keys: [redacted]"),
    ],
)
def test_keys_are_redacted_and_sentences_are_not(text: str, shown: str) -> None:
    assert redact(text) == shown
