import msgspec
import pytest

from shared.config import (
    BY_VARIABLE,
    DECLARED,
    RELATIONS,
    Settings,
    SettingsError,
    broken_relations,
    load,
    settings_table,
)
from shared.setting import MIB, Declared, parse_value, refuse_value, render_value


def problems_of(environ: dict[str, str]) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        load(environ)
    assert str(raised.value).splitlines() == [str(problem) for problem in raised.value.problems]
    return [str(problem) for problem in raised.value.problems]


def test_an_empty_environment_gives_the_defaults() -> None:
    assert load({}) == Settings()


def test_variables_of_others_are_passed_over() -> None:
    assert load({"PATH": "/bin", "topics_shards": "x", "MY_TOPICS_SHARDS": "x"}) == Settings()


def test_a_variable_of_the_test_suite_is_no_setting_and_no_problem() -> None:
    assert load({"TOPICS_TEST_DEEP": "1"}) == Settings()


def test_each_setting_is_read_from_its_variable() -> None:
    environ = {"TOPICS_DATA_DIR": "/srv/topics", "TOPICS_SHARDS": "3", "TOPICS_WAL_FILE_BYTES": "128 MiB"}
    assert load(environ) == Settings(data_dir="/srv/topics", shards=3, wal_file_bytes=128 * MIB)


def test_all_problems_are_told_at_once() -> None:
    assert problems_of(
        {
            "TOPICS_SHARDS": "many",
            "TOPICS_WAL_FILE_BYTES": "1KiB",
            "TOPICS_DATA_DIR": "",
            "TOPICS_MAX_LIMTI": "5",
            "TOPICS_MAX_LIMIT": "5",
        }
    ) == [
        "TOPICS_DATA_DIR='': its length must be at least 1",
        "TOPICS_MAX_LIMTI: there is no such setting; the nearest name is TOPICS_MAX_LIMIT",
        "TOPICS_SHARDS='many': must be a whole number",
        "TOPICS_WAL_FILE_BYTES='1KiB': must be from 64 KiB to 4 GiB",
    ]


def test_the_value_of_an_unknown_variable_is_not_repeated() -> None:
    assert "secret" not in problems_of({"TOPICS_KEY": "secret"})[0]


@pytest.mark.parametrize(
    "environ",
    [
        {"TOPICS_MAX_RECORD_BYTES": "1000"},
        {"TOPICS_MAX_RECORD_BYTES": "64MiB", "TOPICS_MAX_WAITING_BYTES": "1MiB"},
    ],
)
def test_values_that_do_not_go_together_are_refused(environ: dict[str, str]) -> None:
    (problem,) = problems_of(environ)
    assert "must be at most TOPICS_MAX_" in problem


def test_every_relation_is_about_fields_that_exist() -> None:
    names = {field.name for field in DECLARED}
    assert {name for relation in RELATIONS for name in (relation.smaller, relation.larger)} <= names
    assert broken_relations(Settings()) == []


@pytest.mark.parametrize("field", DECLARED, ids=lambda field: field.name)
def test_every_setting_has_bounds_that_hold_and_one_line_of_help(field: Declared) -> None:
    assert BY_VARIABLE[field.variable] is field
    setting = field.setting
    assert setting.help.endswith(".")
    assert "\n" not in setting.help
    assert "|" not in setting.help
    if field.kind is int:
        assert setting.unit
        for bound, beyond in ((setting.minimum, -1), (setting.maximum, +1)):
            assert bound is not None
            assert parse_value(field, str(bound)) == bound
            assert refuse_value(field, bound + beyond) is not None
    assert parse_value(field, render_value(field, field.default)) == field.default


def test_the_table_has_a_row_for_each_setting() -> None:
    table = settings_table()
    rows = table.splitlines()[2:]
    assert len(rows) == len(msgspec.structs.fields(Settings))
    assert all(len(row.split(" | ")) == 5 for row in rows)
    assert "| `TOPICS_WAL_FILE_BYTES` | `64 MiB` | bytes | from 64 KiB to 4 GiB |" in table
