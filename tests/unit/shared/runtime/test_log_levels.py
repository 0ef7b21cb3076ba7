import logging

import pytest

from shared.runtime.log_levels import Levels, check_levels, parse_levels


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("info", Levels(logging.INFO, {})),
        ("WARNING", Levels(logging.WARNING, {})),
        ("topicsd.log=debug", Levels(logging.INFO, {"topicsd.log": logging.DEBUG})),
        (
            "error, topicsd.log = debug,router=info",
            Levels(logging.ERROR, {"topicsd.log": logging.DEBUG, "router": logging.INFO}),
        ),
    ],
)
def test_levels_are_parsed(text: str, levels: Levels) -> None:
    assert parse_levels(text) == levels
    assert check_levels(text) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a level"),
        ("loud", "'loud' is not a level: debug, info, warning, error"),
        ("info,", "'' is not a level"),
        ("info,debug", "only one level"),
        ("topicsd.log=", "'' is not a level"),
        ("=debug", "'' is not a module name"),
        ("topics-d=debug", "'topics-d' is not a module name"),
        ("topicsd=debug,topicsd=info", "topicsd must not be named twice"),
        ("info,topicsd.logg=debug", r"^topicsd\.logg: unknown module, did you mean topicsd\.log\?$"),
        ("routr=debug", r"^routr: unknown module, did you mean router\?$"),
        ("zzz=debug", r"^zzz: unknown module, such as topicsd\.log$"),
    ],
)
def test_an_invalid_level_is_refused_with_a_message(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_levels(text)
