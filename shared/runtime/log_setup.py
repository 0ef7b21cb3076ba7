"""Logging of every process: one line per event, text on a terminal and JSON otherwise.

A line holds the time (UTC), the level, the process (`supervisor`, `front`, `worker-03`), the module, the
message, and fields: `logger.warning("the disk is slow", extra=fields(shard=3, sync_ms=812))`. The content of
a field or a traceback never breaks a line. Text that looks like an API key is redacted in all of them,
because more people read logs than may have the keys.

Logging never stops the server: a line that cannot be written is dropped.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, TextIO

import msgspec

from shared.runtime.log_levels import parse_levels

REDACTED: Final = "[redacted]"

_FIELDS: Final = "topics_fields"
_SECRETS: Final = (
    re.compile(r"(?i)(\bbearer(?:\s|%20|\+)+)[^\s'\"&]+"),
    re.compile(r"(?i)(\btoken=)[^\s'\"&]+"),
    re.compile(
        r"(?i)(\b(?:topics_)?api[-_]keys['\"]?\s*[=:]\s*['\"]?)"
        # Sentences about the setting itself stay; a list of keys is redacted as a whole.
        r"(?!entry \d+: |the key of entry |must (?:be|not) |unknown setting|ignored: )"
        r"(?:\[[^\]]*\]?|[^\s'\"]+)"
    ),
)
_modules_set: list[str] = []
_encode = msgspec.json.Encoder(enc_hook=repr).encode


def set_up_logging(levels: str, role: str, stream: TextIO | None = None) -> None:
    """Configure the logging of this process; a second call replaces the first."""
    parsed = parse_levels(levels)
    # Resolved here, not as a default argument, so that a replaced stderr is used.
    out = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(out)
    handler.setFormatter(TextLines(role) if out.isatty() else JsonLines(role))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(parsed.general)
    for module in _modules_set:
        logging.getLogger(module).setLevel(logging.NOTSET)
    _modules_set.clear()
    for module, level in parsed.by_module.items():
        logging.getLogger(module).setLevel(level)
        _modules_set.append(module)
    # Do not report a failed write of a log line to the same broken stream.
    logging.raiseExceptions = False
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


def fields(**values: object) -> dict[str, Mapping[str, object]]:
    """Return the fields of an event, for `extra=`."""
    return {_FIELDS: values}


def redact(text: str) -> str:
    """Replace keys in the text.

    >>> redact("GET /v0/watch/w1?token=abc&x=1 authorization: Bearer s3cret")
    'GET /v0/watch/w1?token=[redacted]&x=1 authorization: Bearer [redacted]'
    """
    for secret in _SECRETS:
        text = secret.sub(rf"\1{REDACTED}", text)
    return text


class _Lines(logging.Formatter):
    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def when(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        return f"{at:%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03d}Z"

    def message(self, record: logging.LogRecord) -> str:
        try:
            return redact(record.getMessage())
        except (TypeError, ValueError):
            # A bug in the logging call: log the message without its arguments rather than lose it.
            return redact(str(record.msg))

    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        values = dict(getattr(record, _FIELDS, {}))
        for name, value in values.items():
            if isinstance(value, bytes | bytearray | memoryview):
                value = bytes(value).decode("utf-8", "backslashreplace")
            if not isinstance(value, bool | int | float | None):
                value = redact(value if isinstance(value, str) else str(value))
            values[name] = value
        return values

    def trace(self, record: logging.LogRecord) -> str:
        if not record.exc_info or record.exc_info[0] is None:
            return ""
        return redact("".join(traceback.format_exception(*record.exc_info)).rstrip())


class TextLines(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        parts = [
            f"{self.when(record)} {record.levelname:<7} {self._role} {record.name}: {self.message(record)}",
            *(f"{name}={_word(value)}" for name, value in self.fields(record).items()),
        ]
        trace = self.trace(record)
        if trace:
            parts.append(f"exception={_word(trace)}")
        return _one_line("  ".join(parts))


class JsonLines(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": self.when(record),
            "level": record.levelname.lower(),
            "process": self._role,
            "pid": record.process,
            "module": record.name,
            "message": self.message(record),
        }
        for name, value in self.fields(record).items():
            # A field does not replace a member that every line has.
            line[f"{name}_" if name in line else name] = value
        trace = self.trace(record)
        if trace:
            line["exception"] = trace
        # A lone surrogate, as in a path that is not UTF-8, cannot be encoded as JSON.
        try:
            return _encode(line).decode()
        except UnicodeEncodeError:
            harmless = {name: _without_surrogates(value) for name, value in line.items()}
            return _encode(harmless).decode()


def _without_surrogates(value: object) -> object:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _word(value: object) -> str:
    text = str(value)
    return text if re.fullmatch(r"[^\s\"=]+", text) else f'"{text}"'


def _one_line(text: str) -> str:
    """Escape every character that would break the line or control the terminal."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    logging.getLogger("topicsd").critical(
        "process: exiting: unhandled exception", exc_info=(kind, error, trace)
    )


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        name = "unnamed" if args.thread is None else args.thread.name
        exc_info = (args.exc_type, args.exc_value, args.exc_traceback)
        logging.getLogger("topicsd").critical(
            "thread %s: ended: unhandled exception", name, exc_info=exc_info
        )
