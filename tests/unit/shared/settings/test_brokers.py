import pytest

from shared.settings.brokers import chosen_brokers
from shared.settings.setting import AUTO
from shared.settings.settings import Settings
from shared.settings.sources import SettingsError, load_settings

STORE = {"TOPICS_STORE_URL": "file:///srv/objects"}


def problem_of(environ: dict[str, str], **flags: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, environ)
    return str(caught.value)


def test_a_server_has_one_broker_when_it_has_a_store() -> None:
    assert chosen_brokers(load_settings({}, {}).settings) == 0
    assert chosen_brokers(load_settings({}, STORE).settings) == 1
    assert chosen_brokers(load_settings({"brokers": "auto"}, STORE).settings) == 1
    assert chosen_brokers(load_settings({}, {**STORE, "TOPICS_BROKERS": "3"}).settings) == 3
    assert chosen_brokers(load_settings({"brokers": "0"}, STORE).settings) == 0
    assert chosen_brokers(load_settings({"memory": "true"}, {}).settings) == 0


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        (
            {"TOPICS_BROKERS": "1"},
            "TOPICS_BROKERS='1': must be 0 or auto: brokers need an object store; set TOPICS_STORE_URL",
        ),
        (
            {"TOPICS_BROKERS": "2", "TOPICS_MEMORY": "1"},
            "TOPICS_BROKERS='2': must be 0 or auto: the server keeps everything in memory",
        ),
        (
            {"TOPICS_SHARDS": "0", "TOPICS_MEMORY": "1"},
            "TOPICS_SHARDS='0': must be at least 1: the server keeps everything in memory",
        ),
        (
            {"TOPICS_SHARDS": "0"},
            "TOPICS_SHARDS='0': must be at least 1: a node without shards needs brokers; "
            "set TOPICS_STORE_URL",
        ),
        (
            {"TOPICS_SHARDS": "0", "TOPICS_BROKERS": "0", **STORE},
            "TOPICS_SHARDS='0': must be at least 1: a node without shards needs brokers; "
            "set TOPICS_BROKERS=1",
        ),
        (
            {"TOPICS_BROKER_ROLES": "write,append"},
            "TOPICS_BROKER_ROLES='write,append': \"append\" is no role; the roles are write, read, compact",
        ),
        ({"TOPICS_BROKER_ROLES": "read,read"}, "TOPICS_BROKER_ROLES='read,read': read is given twice"),
        ({"TOPICS_NODE_WEIGHT": "nan"}, "TOPICS_NODE_WEIGHT='nan': must be a number from 0 to 1000"),
        ({"TOPICS_NODE_WEIGHT": "1001"}, "TOPICS_NODE_WEIGHT='1001': must be a number from 0 to 1000"),
        (
            {"TOPICS_NODE_ADDRESS": "http://user@host"},
            "TOPICS_NODE_ADDRESS='http://user@host': must be an address as http://host:port",
        ),
        (
            {"TOPICS_NODE_ADDRESS": "http://host:99999"},
            "TOPICS_NODE_ADDRESS='http://host:99999': must be an address as http://host:port",
        ),
    ],
)
def test_settings_that_no_broker_can_have_are_refused(environ: dict[str, str], problem: str) -> None:
    assert problem_of(environ) == problem


def test_a_stateless_node_needs_nothing_but_a_store() -> None:
    settings = load_settings({"shards": "0"}, STORE).settings
    assert (settings.shards, chosen_brokers(settings)) == (0, 1)


def test_auto_is_a_word_in_each_source() -> None:
    assert Settings().shards == AUTO
    assert load_settings({"shards": "auto"}, {"TOPICS_SHARDS": "3"}).settings.shards == AUTO
    assert "must be auto (one for each core) or from 0 to 1024" in problem_of({"TOPICS_SHARDS": "-1"})
