"""The survey of topics before the rule of the placement changes, as one shard takes part in it.

U1  While the supervisor surveys, the board has the next rule. From then on this shard creates only topics
    that the next rule places here too. So its answer stays complete until the placement has changed.
U2  A topic is created only where the placement has it in that turn of the loop: its request may have waited
    while the placement changed.
U3  A new topic gets an epoch above the floor of the placement, which is above all epochs that any shard gave
    before the survey. So no name gets an epoch again after the rule gave it to another shard.
"""

from __future__ import annotations

import logging
import os
from typing import Final

from shared.contract.errors import NOT_READY, Refusal, relocated
from shared.contract.names import topic_id
from shared.ipc.link import LinkReply
from shared.ipc.placement import shard_of
from shared.ipc.shared_placement import SharedPlacement
from shared.ipc.survey import ShardSurvey, SurveyRequest, decode_survey_request, encode_survey_message
from shared.runtime.unexpected_error import refuse_unexpected_error
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.state import ShardState
from topicsd.service.shards.arrivals import Arrivals

logger = logging.getLogger("topicsd.relocation")

TOPICS_AT_ONCE: Final = 1000
RETRY_AFTER_MS: Final = 100


class Surveys:
    """The answers of one shard, and the guard of its creations."""

    def __init__(self, state: ShardState, placement: SharedPlacement, arrivals: Arrivals) -> None:
        self._state = state
        self._placement = placement
        self._arrivals = arrivals
        state.guard_creations(self._refuse_creation)

    def _refuse_creation(self, name: str) -> Refusal | None:
        placement, number = self._placement, topic_id(name)
        placement.refresh()
        if placement.current.shard_of(number) != self._state.number:
            return relocated(name)
        rule = placement.next_rule
        if rule and shard_of(number, rule) != self._state.number:
            message = "the number of shards is being changed, this topic cannot be created for a moment"
            return Refusal(NOT_READY, message, retry_after_ms=RETRY_AFTER_MS)
        self._state.raise_epoch_floor(placement.current.epoch_floor)
        return None

    def answer_link(self, payload: bytes, reply: LinkReply) -> None:
        """Answer the supervisor; an empty answer means that this shard cannot."""

        def on_end(outcome: ShardSurvey | Exception) -> None:
            if isinstance(outcome, Exception):
                refuse_unexpected_error(logger, "a survey of topics", outcome)
                reply(b"")
            else:
                reply(encode_survey_message(outcome))

        self._state.jobs.start_now(self._survey(decode_survey_request(payload)), on_end)

    def _survey(self, request: SurveyRequest) -> BackgroundJob[ShardSurvey]:
        """Return the topics that are here and that the rule places elsewhere.

        Deleted topics may be among them, but none is missing (U1).
        """
        state, hidden = self._state, self._arrivals.hidden

        def is_elsewhere(name: str) -> bool:
            number = topic_id(name)
            return number <= request.last_id and shard_of(number, request.rule) != state.number

        names = [topic.name for topic in state.topics.values()]
        elsewhere = []
        for start in range(0, len(names), TOPICS_AT_ONCE):
            elsewhere += [
                name
                for name in names[start : start + TOPICS_AT_ONCE]
                if name in state.topics and name not in hidden and is_elsewhere(name)
            ]
            yield None
        # Topics that departed to another node stay known to the shard that had them.
        departed = [name for name in state.departed if is_elsewhere(name)]
        return ShardSurvey(os.getpid(), elsewhere, departed, list(hidden), state.next_epoch())
