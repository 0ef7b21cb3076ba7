from __future__ import annotations

import msgspec

from shared.contract.route_rule import RouteRule, WebhookOptions
from topicsd.log.control_frame import ForwardCreate, encode_control
from topicsd.log.frame import parse_frame
from topicsd.offline.report.frame_rows import frame_row, row_text
from topicsd.offline.report.job_events import JobEvents

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_a_row_of_a_webhook_shows_its_options_without_the_secret() -> None:
    rule = RouteRule("r", "a", "https://b.example/", webhook=WebhookOptions(SECRET, batch=7))
    frame = encode_control(ForwardCreate(rule, 1, 0, 0), topic_id=7, ts=5)
    row = frame_row(0, 1, "wal-1.log", 59, parse_frame(frame, 0, len(frame)), "a", JobEvents())
    assert row.control is not None
    shown = row.control["rule"]["webhook"]
    assert (shown["secret"], shown["batch"]) == ("(set)", 7)
    assert SECRET not in row_text(row) + msgspec.json.encode(row).decode()
