import msgspec
import pytest

from shared.settings.relations import RELATIONS, broken_relations
from shared.settings.setting import (
    SettingField,
    accept_value,
    parse_value,
    refuse_value,
    render_value,
    show_value,
)
from shared.settings.settings import (
    DECLARED,
    Settings,
    declared_values,
    settings_table,
)


def test_no_text_of_the_settings_reveals_a_secret() -> None:
    settings = Settings(api_keys="hush", port=1)
    assert "hush" not in repr(settings)
    assert "hush" not in str([settings])
    assert "api_keys='(set)'" in repr(settings)
    assert "port='1'" in repr(settings)
    shown = {field.name: show_value(field, value) for field, value in declared_values(settings)}
    assert shown["api_keys"] == "(set)"
    assert "hush" not in str(shown)


def test_settings_survive_json_encoding() -> None:
    settings = Settings(api_keys="sha256-" + "0" * 64, port=0, probe_auth=True)
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings


def test_every_relation_names_existing_fields() -> None:
    names = {field.name for field in DECLARED}
    assert {name for relation in RELATIONS for name in (relation.smaller, relation.larger)} <= names
    assert broken_relations(Settings(), {}) == []


@pytest.mark.parametrize("field", DECLARED, ids=lambda field: field.name)
def test_every_setting_enforces_its_bounds_and_has_one_line_of_help(field: SettingField) -> None:
    assert field.variable == "TOPICS_" + field.name.upper()
    assert field.flag.removeprefix("--").replace("-", "_") == field.name
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
    assert accept_value(field, field.default) == field.default


def test_the_table_has_a_row_for_each_setting() -> None:
    table = settings_table()
    rows = table.splitlines()[2:]
    assert len(rows) == len(msgspec.structs.fields(Settings))
    assert all(len(row.split(" | ")) == 5 for row in rows)
    assert "| `TOPICS_WAL_FILE_BYTES` | `64 MiB` | bytes | from 64 KiB to 4 GiB |" in table
