from __future__ import annotations

import pytest

from shared.settings.setting import MIB
from shared.settings.settings import DECLARED, Settings
from shared.settings.sources import ConfigFile, Resolved, SettingsError, load_settings
from shared.settings.store_url import store_url_of


def load(environ: dict[str, str] | None = None, toml: str | None = None, **flags: str) -> Resolved:
    config_file = None if toml is None else ConfigFile("topics.toml", toml)
    return load_settings(flags, environ or {}, config_file)


def problems_of(environ: dict[str, str] | None = None, toml: str | None = None, **flags: str) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        load(environ, toml, **flags)
    assert str(raised.value).splitlines() == [str(problem) for problem in raised.value.problems]
    return [str(problem) for problem in raised.value.problems]


def test_without_sources_every_setting_has_its_default() -> None:
    resolved = load()
    assert resolved.settings == Settings()
    assert resolved.origins == {field.name: "default" for field in DECLARED}
    assert resolved.advice == []


def test_variables_of_other_programs_are_ignored() -> None:
    environ = {"PATH": "/bin", "topics_shards": "x", "MY_TOPICS_SHARDS": "x", "TOPICS_TEST_DEEP": "1"}
    assert load(environ).settings == Settings()


def test_the_variable_that_names_the_file_is_ignored() -> None:
    assert load({"TOPICS_CONFIG": "a.toml"}).settings == Settings()


@pytest.mark.parametrize(
    ("in_flag", "in_environ", "in_file", "value", "origin"),
    [
        (True, True, True, 1, "--port"),
        (True, False, True, 1, "--port"),
        (False, True, True, 2, "TOPICS_PORT"),
        (False, False, True, 3, "topics.toml"),
        (True, True, False, 1, "--port"),
        (False, True, False, 2, "TOPICS_PORT"),
        (False, False, False, 4000, "default"),
    ],
)
def test_a_flag_overrides_a_variable_which_overrides_the_file(
    in_flag: bool, in_environ: bool, in_file: bool, value: int, origin: str
) -> None:
    flags = {"port": "1"} if in_flag else {}
    environ = {"TOPICS_PORT": "2"} if in_environ else {}
    resolved = load_settings(flags, environ, ConfigFile("topics.toml", "port = 3") if in_file else None)
    assert resolved.settings.port == value
    assert resolved.origins["port"] == origin
    assert resolved.origins["host"] == "default"


def test_each_type_is_read_from_each_source() -> None:
    expected = Settings(data_dir="/srv/topics", shards=3, wal_file_bytes=128 * MIB, probe_auth=True)
    environ = {
        "TOPICS_DATA_DIR": "/srv/topics",
        "TOPICS_SHARDS": "3",
        "TOPICS_WAL_FILE_BYTES": "128 MiB",
        "TOPICS_PROBE_AUTH": "1",
    }
    toml = 'data_dir = "/srv/topics"\nshards = 3\nwal_file_bytes = "128 MiB"\nprobe_auth = true\n'
    assert load(environ).settings == expected
    assert load(toml=toml).settings == expected
    assert load(toml=toml.replace('"128 MiB"', str(128 * MIB))).settings == expected
    flags = {"data_dir": "/srv/topics", "shards": "3", "wal_file_bytes": "128MiB", "probe_auth": "true"}
    assert load_settings(flags, {}).settings == expected


def test_all_problems_are_reported_together_with_their_sources() -> None:
    problems = problems_of(
        {
            "TOPICS_SHARDS": "many",
            "TOPICS_WAL_FILE_BYTES": "1KiB",
            "TOPICS_DATA_DIR": "",
            "TOPICS_MAX_LIMIT": "5",
        },
        'port = "x"\nprot = 5\nfronts = true\nshards = 3.5\nprobe_auth = 1\nhost = 1\nmemory = "true"\n'
        'log = ["debug"]\n[server]\nport = 1\n',
        drain_seconds="0",
    )
    assert problems == [
        "topics.toml: port='x': must be a whole number, without quotes",
        "topics.toml: prot: unknown setting, did you mean port?",
        "topics.toml: fronts=true: must be a whole number",
        "topics.toml: shards=3.5: must be a whole number",
        "topics.toml: probe_auth=1: must be true or false",
        "topics.toml: host=1: must be a text in quotes",
        "topics.toml: memory='true': must be true or false, without quotes",
        "topics.toml: log: must be a text in quotes",
        "topics.toml: server: settings belong at the top level of the file, not in a table",
        "TOPICS_DATA_DIR='': must not be empty",
        "TOPICS_SHARDS='many': must be a whole number",
        "TOPICS_WAL_FILE_BYTES='1KiB': must be from 64 KiB to 4 GiB",
        "--drain-seconds='0': must be from 1 s to 5 m",
    ]


def test_a_wrong_value_is_reported_even_when_another_source_overrides_it() -> None:
    assert problems_of({"TOPICS_PORT": "2"}, "port = -1") == ["topics.toml: port=-1: must be from 0 to 65535"]


def test_a_file_that_is_not_toml_is_named() -> None:
    (problem,) = problems_of(toml="port: 4000")
    assert problem.startswith("topics.toml: is not valid TOML: ")


def test_a_mistyped_file_variable_gets_a_suggestion() -> None:
    (warning,) = load({"TOPICS_CONFGI": "a.toml"}).advice
    assert warning == "TOPICS_CONFGI: ignored: unknown setting, did you mean TOPICS_CONFIG?"


def test_an_unknown_name_without_a_near_one_points_to_the_list() -> None:
    (problem,) = problems_of(toml="replication = 3")
    (warning,) = load({"TOPICS_RETRIES": "3"}).advice
    for message in (problem, warning):
        assert message.endswith("unknown setting; `topicsd config show` lists them")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("TOPICS_DATADIR", "TOPICS_DATA_DIR"),
        ("TOPICS_API_KEY", "TOPICS_API_KEYS"),
        ("TOPICS_SHARD", "TOPICS_SHARDS"),
        ("TOPICS_LOG_LEVEL", "TOPICS_LOG"),
        ("TOPICS_LOGLEVEL", "TOPICS_LOG"),
        ("TOPICS_DRAIN_MS", "TOPICS_DRAIN_SECONDS"),
        ("TOPICS_NO_AUTH", "TOPICS_ALLOW_INSECURE_NO_AUTH"),
        ("TOPICS_KEY", "TOPICS_API_KEYS"),
        ("TOPICS_BATCH_RECORDS", "TOPICS_MAX_BATCH_RECORDS"),
        ("TOPICS_BATCH_BYTES", "TOPICS_BATCH_MAX_BYTES"),
        ("TOPICS_NUM_SHARDS", "TOPICS_SHARDS"),
        ("TOPICS_MAX_QUEUES", None),
        ("TOPICS_MAX_CLIENTS", None),
        ("TOPICS_WAL_DIR", None),
        ("TOPICS_MAX", None),
        ("TOPICS_HOSTNAME", "TOPICS_HOST"),
        ("TOPICS_TLS", None),
        ("TOPICS_WORKERS", None),
        ("TOPICS_MAX_BODY", "TOPICS_MAX_BODY_BYTES"),
    ],
)
def test_the_suggestion_is_a_plausible_name(wrong: str, right: str | None) -> None:
    (warning,) = load({wrong: "1"}).advice
    assert (f"did you mean {right}?" if right else "`topicsd config show` lists them") in warning


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"TOPICS_MAX_RECORD_BYTES": "1000"},
            "TOPICS_MAX_META_BYTES='16 KiB': must be at most TOPICS_MAX_REC",
        ),
        (
            {"TOPICS_MAX_RECORD_BYTES": "64MiB", "TOPICS_MAX_WAITING_BYTES": "1MiB"},
            "TOPICS_MAX_RECORD_BYTES='64 MiB': must be at most TOPICS_MAX_WAITING_BYTES=1 MiB: ",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(environ: dict[str, str], message: str) -> None:
    (problem,) = problems_of(environ)
    assert problem.startswith(message)


def test_values_that_contradict_each_other_are_reported_by_their_sources() -> None:
    (problem,) = problems_of(toml="max_record_bytes = 1000", max_meta_bytes="2000")
    assert problem.startswith("--max-meta-bytes='2000': must be at most topics.toml: max_record_bytes=1000: ")


SECRET = "hush-hush-hush-hush"


@pytest.mark.parametrize(
    ("environ", "toml"),
    [
        ({"TOPICS_API_KEYS": f"{SECRET}:{SECRET}"}, None),
        ({}, f'api_keys = "{SECRET}:raed"'),
        ({}, f'api_keys = ["{SECRET}", 1]'),
        ({}, f'api_keys = ["{SECRET},{SECRET}"]'),
        ({}, f'api_key = "{SECRET}"'),
        ({}, f'api_keys = "{SECRET}'),
    ],
)
def test_no_problem_reveals_a_secret(environ: dict[str, str], toml: str | None) -> None:
    assert SECRET not in "".join(problems_of(environ, toml))


def test_settings_contain_digests_instead_of_keys() -> None:
    settings = load({"TOPICS_API_KEYS": f"{SECRET}:read"}).settings
    assert SECRET not in settings.api_keys
    assert settings.api_keys.startswith("sha256-")


def test_a_short_key_causes_a_warning_that_does_not_show_it() -> None:
    (sentence,) = load({"TOPICS_API_KEYS": f"{SECRET},tiny"}).advice
    assert sentence == (
        "TOPICS_API_KEYS: the key of entry 2 is shorter than 16 characters and might be guessed"
    )
    assert load({"TOPICS_API_KEYS": "tiny"}, api_keys=SECRET).advice == []


def test_an_unknown_variable_is_a_warning_without_its_value() -> None:
    (warning,) = load({"TOPICS_KEY": SECRET}).advice
    assert warning == "TOPICS_KEY: ignored: unknown setting, did you mean TOPICS_API_KEYS?"


def test_variables_that_kubernetes_sets_for_a_service_are_ignored() -> None:
    environ = {
        "TOPICS_SERVICE_HOST": "10.0.0.7",
        "TOPICS_SERVICE_PORT": "4000",
        "TOPICS_SERVICE_PORT_HTTP": "4000",
        "TOPICS_PORT": "tcp://10.0.0.7:4000",
        "TOPICS_PORT_4000_TCP": "tcp://10.0.0.7:4000",
        "TOPICS_PORT_4000_TCP_PROTO": "tcp",
        "TOPICS_PORT_4000_TCP_PORT": "4000",
        "TOPICS_PORT_4000_TCP_ADDR": "10.0.0.7",
        "TOPICS_DATA_PORT": "udp://10.0.0.8:53",
    }
    resolved = load(environ)
    assert resolved.settings == Settings()
    assert resolved.advice == []
    assert resolved.ignored_variables == sorted(environ)


def test_keys_may_be_a_list_in_a_file() -> None:
    listed = load(toml=f'api_keys = ["{SECRET}:read", "{SECRET}2"]').settings
    assert listed == load({"TOPICS_API_KEYS": f"{SECRET}:read,{SECRET}2"}).settings
    assert problems_of(toml='api_keys = ["a", "b,c"]') == [
        "topics.toml: api_keys: entry 2: must not contain a comma"
    ]
    assert problems_of(toml="api_keys = 5") == [
        "topics.toml: api_keys: must be a text in quotes, or a list of them"
    ]
    (advice,) = load(toml=f'api_keys = ["{SECRET}", "short"]').advice
    assert "the key of entry 2 is shorter" in advice


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("sync_interval_ms", "100", 100),
        ("sync_interval_ms", "100ms", 100),
        ("sync_interval_ms", "0.5 s", 500),
        ("drain_seconds", "30", 30),
        ("drain_seconds", "2m", 120),
        ("reader_grace_ms", "1.5h", 5_400_000),
        ("wal_file_bytes", "64MB", 64_000_000),
        ("wal_file_bytes", "64mib", 64 * MIB),
        ("background_bytes_per_second", "10 MiB", 10 * MIB),
        ("segment_max_age_ms", "0", 0),
        ("segment_max_age_ms", "7d", 604_800_000),
        ("default_durability", "fsync", "fsync"),
    ],
)
def test_durations_and_sizes_have_units_in_every_source(name: str, text: str, value: object) -> None:
    assert getattr(load({f"TOPICS_{name.upper()}": text}).settings, name) == value
    assert getattr(load(toml=f'{name} = "{text}"').settings, name) == value
    assert getattr(load_settings({name: text}, {}).settings, name) == value


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("sync_interval_ms", "fast", 'must be a number of milliseconds or a duration such as "10m"'),
        ("sync_interval_ms", "-1", 'must be a number of milliseconds or a duration such as "10m"'),
        ("sync_interval_ms", "2s", "must be from 1 ms to 1 s"),
        ("drain_seconds", "soon", 'must be a number of seconds or a duration such as "10m"'),
        ("drain_seconds", "1.5s", "must be a whole number of seconds"),
        ("wal_file_bytes", "64 apples", 'must be a number of bytes or a size such as "64 MiB"'),
        ("segment_max_age_ms", "999", "must be 0 (off) or from 1 s to 365 d"),
        ("default_durability", "disc", "must be one of ephemeral, memory, disk, fsync, did you mean disk?"),
    ],
)
def test_a_wrong_duration_or_size_names_the_accepted_form(name: str, text: str, sentence: str) -> None:
    variable = f"TOPICS_{name.upper()}"
    assert problems_of({variable: text}) == [f"{variable}={text!r}: {sentence}"]


def test_in_memory_everything_is_ephemeral() -> None:
    assert load({"TOPICS_MEMORY": "1"}).settings.default_durability == "ephemeral"
    assert problems_of({"TOPICS_MEMORY": "1", "TOPICS_DEFAULT_DURABILITY": "disk"}) == [
        "TOPICS_DEFAULT_DURABILITY='disk': must be ephemeral: the server keeps everything in memory"
    ]
    assert problems_of({"TOPICS_MEMORY": "1", "TOPICS_COLD_DIR": "/c"}) == [
        "TOPICS_COLD_DIR='/c': must be empty: the server keeps everything in memory"
    ]


def test_one_name_of_the_object_store_is_enough() -> None:
    given = {"TOPICS_COLD_DIR": "/mnt/big", "TOPICS_STORE_URL": "s3://bucket"}
    (problem,) = problems_of(given)
    expected = "must be empty: TOPICS_STORE_URL is set, and both name the store of old segments"
    assert problem == f"TOPICS_COLD_DIR='/mnt/big': {expected}"
    assert store_url_of(load({"TOPICS_COLD_DIR": "/mnt/big"}).settings) == "file:///mnt/big"
    assert store_url_of(load({"TOPICS_STORE_URL": "s3://bucket"}).settings) == "s3://bucket"


def test_a_store_in_memory_mode_is_refused() -> None:
    (problem,) = problems_of({"TOPICS_MEMORY": "true", "TOPICS_STORE_URL": "s3://bucket"})
    assert problem.endswith("must be empty: the server keeps everything in memory")


@pytest.mark.parametrize("name", ["store_url", "catalog_url"])
@pytest.mark.parametrize(
    "url",
    [
        "s3://key:hush@bucket",
        "s3://key:a/hush@bucket",
        "s3://bucket?secret_access_key=hush",
        "s3://bucket?endpoint=https://key:hush@host",
        "etcd://user:hush@host:1",
        "hush",
    ],
)
def test_a_refused_url_is_not_shown(name: str, url: str) -> None:
    problems = [
        problems_of({f"TOPICS_{name.upper()}": url}),
        problems_of(toml=f'{name} = "{url}"'),
        problems_of(**{name: url}),
    ]
    for (problem,) in problems:
        assert "must" in problem
        assert "hush" not in problem
