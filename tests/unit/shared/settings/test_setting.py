from typing import Annotated, Any

import msgspec
import pytest

from shared.settings.setting import (
    KIB,
    MIB,
    Setting,
    SettingField,
    declared_fields,
    parse_value,
    refuse_value,
    render_bounds,
    render_value,
)

COUNT = SettingField("count", int, 5, Setting(help="A count.", unit="records", minimum=-3, maximum=100))
SIZE = SettingField("size", int, KIB, Setting(help="A size.", unit="bytes", minimum=1, maximum=4 << 30))
RATE = SettingField("rate", int, KIB, Setting(help="A rate.", unit="bytes/s", minimum=1, maximum=4 << 30))
FLAG = SettingField("flag", bool, False, Setting(help="A flag."))
PATH = SettingField("path", str, ".", Setting(help="A path.", unit="path", minimum=1))


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        (COUNT, "0", 0),
        (COUNT, "-3", -3),
        (COUNT, "100", 100),
        (SIZE, "1", 1),
        (SIZE, "1000", 1000),
        (SIZE, "2KiB", 2 * KIB),
        (SIZE, "2 KiB", 2 * KIB),
        (SIZE, "64 MiB", 64 * MIB),
        (SIZE, "4GiB", 4 << 30),
        (RATE, "1000", 1000),
        (RATE, "8 MiB", 8 * MIB),
        (FLAG, "true", True),
        (FLAG, "1", True),
        (FLAG, "false", False),
        (FLAG, "0", False),
        (PATH, "/srv/topics data", "/srv/topics data"),
    ],
)
def test_a_text_is_parsed_to_its_value(field: SettingField, text: str, value: Any) -> None:
    parsed = parse_value(field, text)
    assert parsed == value
    assert type(parsed) is field.kind


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "1\n",
        "+1",
        "1_000",
        "1,000",
        "1.0",
        "1e3",
        "0x10",
        "\u0663",
        "one",
        "1KiB",
        "9" * 5000,
    ],
)
def test_a_text_that_is_not_a_plain_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be a whole number$"):
        parse_value(COUNT, text)


@pytest.mark.parametrize("text", ["", "-1", "KiB", "1K", "1  MiB", "1TiB", "1,5 MiB"])
def test_a_text_that_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r'^must be a number of bytes or a size such as "64 MiB"$'):
        parse_value(SIZE, text)


@pytest.mark.parametrize("text", ["", "yes", "True", "TRUE", "on", "2", "true "])
def test_a_text_that_is_not_a_boolean_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be true, false, 1 or 0$"):
        parse_value(FLAG, text)


@pytest.mark.parametrize(
    ("field", "text", "sentence"),
    [
        (COUNT, "-4", "must be from -3 to 100"),
        (COUNT, "101", "must be from -3 to 100"),
        (SIZE, "0", "must be from 1 to 4 GiB"),
        (SIZE, "5GiB", "must be from 1 to 4 GiB"),
        (PATH, "", "must not be empty"),
    ],
)
def test_a_value_outside_its_bounds_is_refused_with_the_bounds(
    field: SettingField, text: str, sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        parse_value(field, text)


def test_a_field_without_bounds_takes_any_number() -> None:
    free = SettingField("free", int, 0, Setting(help=""))
    assert parse_value(free, "99999999999999999999") == 99999999999999999999
    assert render_bounds(free) == ""
    assert refuse_value(SettingField("up", int, 0, Setting(help="", maximum=9)), 10) == "must be at most 9"


@pytest.mark.parametrize(
    ("field", "value"), [(COUNT, -3), (SIZE, 1), (SIZE, 64 * MIB), (SIZE, 1001), (FLAG, True), (PATH, "a b")]
)
def test_a_rendered_value_parses_to_itself(field: SettingField, value: Any) -> None:
    assert parse_value(field, render_value(field, value)) == value


class Example(msgspec.Struct, frozen=True, kw_only=True):
    name: Annotated[str, Setting(help="A name.", minimum=1)] = "x"
    verbose: Annotated[bool, Setting(help="Say more.")] = False
    room_bytes: Annotated[int, Setting(help="Room.", unit="bytes", minimum=1, maximum=MIB)] = KIB


def test_a_struct_declares_its_fields_in_order_and_names_their_variables() -> None:
    fields = declared_fields(Example)
    assert [(field.variable, field.kind, field.default) for field in fields] == [
        ("TOPICS_NAME", str, "x"),
        ("TOPICS_VERBOSE", bool, False),
        ("TOPICS_ROOM_BYTES", int, KIB),
    ]
    assert fields[2].setting.help == "Room."


def test_a_default_outside_its_bounds_is_an_assertion_error() -> None:
    class Wrong(msgspec.Struct):
        size: Annotated[int, Setting(help="", minimum=1)] = 0

    with pytest.raises(AssertionError, match="size"):
        declared_fields(Wrong)


def test_an_unsupported_type_is_an_assertion_error() -> None:
    class Wrong(msgspec.Struct):
        ratio: Annotated[float, Setting(help="")] = 0.5

    with pytest.raises(AssertionError, match="ratio"):
        declared_fields(Wrong)
