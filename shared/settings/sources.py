"""The sources of settings: flags override the environment, then a file, then defaults.

All three use one name: the flag `--drain-seconds` is `TOPICS_DRAIN_SECONDS` in the environment and
`drain_seconds` at the top level of a TOML file. The source of each value is kept, so that a person can find
out why a setting has its value.

`load_settings` collects every problem of every source before it raises, so that a person need not fix one
variable per restart. An unknown key of the file is a problem. An unknown variable that begins with `TOPICS_`
is only a warning, since other programs set variables too. Variables that Kubernetes sets for a Service are
ignored. So are `TOPICS_TEST_`, which belongs to the test suite, and `TOPICS_CONFIG`, which names the file. A
value that another source overrides is checked as well.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from shared.settings.relations import SettingProblem, broken_relations, in_memory
from shared.settings.setting import PREFIX, SettingField, Value, accept_value, parse_value, text_of
from shared.settings.settings import DECLARED, Settings
from shared.text.nearest_name import nearest_name

TEST_PREFIX: Final = "TOPICS_TEST_"
CONFIG_VARIABLE: Final = "TOPICS_CONFIG"
CONFIG_FLAG: Final = "--config"
DEFAULT: Final = "default"

# Kubernetes sets these in every container for a Service called `topics` or `topics-...`.
_kubernetes_name = re.compile(
    r".*_SERVICE_(HOST|PORT)(_[A-Z0-9_]+)?|.*_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?"
)
_kubernetes_value = re.compile(r"(tcp|udp|sctp)://.*")

BY_NAME: Final[dict[str, SettingField]] = {field.name: field for field in DECLARED}
BY_VARIABLE: Final[dict[str, SettingField]] = {field.variable: field for field in DECLARED}


class ConfigFile(NamedTuple):
    path: str
    """Path as the user wrote it, for messages about the file."""
    text: str


class Resolved(NamedTuple):
    settings: Settings
    origins: dict[str, str]
    """Sources by setting name: `default`, the path of the file, the variable or the flag."""
    sources: dict[str, str]
    """Sources of the settings that were set, for messages; with the key if it is a file."""
    advice: list[str]
    """Warnings about valid values that may be mistakes, and about unknown variables."""
    ignored_variables: list[str]
    """Variables that Kubernetes set."""


class SettingsError(ValueError):
    """Every problem of the given settings."""

    def __init__(self, problems: list[SettingProblem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def load_settings(
    flags: Mapping[str, str], environ: Mapping[str, str], config_file: ConfigFile | None = None
) -> Resolved:
    """Return the settings of all sources; SettingsError lists every problem with them.

    `flags` are texts by setting name.
    """
    collected = _Collected()
    if config_file is not None:
        _read_file(collected, config_file)
    _read_environ(collected, environ)
    for name, text in flags.items():
        collected.take_text(BY_NAME[name], text, BY_NAME[name].flag)
    if collected.problems:
        raise SettingsError(collected.problems)
    settings = Settings(**collected.values)  # type: ignore[arg-type]
    problems = broken_relations(settings, collected.sources)
    if problems:
        raise SettingsError(problems)
    if settings.memory:
        settings_in_memory = in_memory(settings, collected.sources)
        if not isinstance(settings_in_memory, Settings):
            raise SettingsError(settings_in_memory)
        settings = settings_in_memory
        if "data_dir" in collected.sources:
            collected.advice["data_dir"] = f"{collected.sources['data_dir']}: ignored: memory is set"
    origins = {name: collected.origins.get(name, DEFAULT) for name in BY_NAME}
    advice = [*collected.unknown, *collected.advice.values()]
    return Resolved(settings, origins, collected.sources, advice, collected.ignored_variables)


def is_kubernetes_variable(variable: str, text: str) -> bool:
    """Return whether Kubernetes set this variable for a Service.

    >>> variables = {"TOPICS_PORT": "tcp://10.0.0.7:4000", "TOPICS_SERVICE_HOST": "10.0.0.7"}
    >>> [is_kubernetes_variable(name, text) for name, text in variables.items()]
    [True, True]
    >>> is_kubernetes_variable("TOPICS_PORT", "4000"), is_kubernetes_variable("TOPICS_HOST", "10.0.0.7")
    (False, False)
    """
    return bool(_kubernetes_name.fullmatch(variable) or _kubernetes_value.fullmatch(text))


def _unknown_setting(wrong: str, names: Iterable[str], prefix: str = "") -> str:
    nearest = nearest_name(wrong, names, prefix)
    if nearest is None:
        return "unknown setting; `topicsd config show` lists them"
    return f"unknown setting, did you mean {nearest}?"


class _Collected:
    """Values and problems collected so far; a later source overrides."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.origins: dict[str, str] = {}
        self.sources: dict[str, str] = {}
        self.advice: dict[str, str] = {}
        self.problems: list[SettingProblem] = []
        self.unknown: list[str] = []
        self.ignored_variables: list[str] = []

    def take_text(self, field: SettingField, text: str, origin: str) -> None:
        try:
            self._take(field, text, parse_value(field, text), origin, origin)
        except ValueError as error:
            self._add_problem(field, origin, text, error)

    def take_typed(self, field: SettingField, given: object, path: str) -> None:
        source = f"{path}: {field.name}"
        try:
            value = accept_value(field, given)
            text = text_of(field, given) if field.kind is str else str(given)
            self._take(field, text, value, path, source)
        except ValueError as error:
            self._add_problem(field, source, _shown(given), error, isinstance(given, str))

    def _take(self, field: SettingField, text: str, value: Value, origin: str, source: str) -> None:
        self.values[field.name] = value
        self.origins[field.name] = origin
        self.sources[field.name] = source
        advise = field.setting.advise
        sentence = None if advise is None else advise(text)
        self.advice.pop(field.name, None)
        if sentence is not None:
            self.advice[field.name] = f"{source}: {sentence}"

    def _add_problem(
        self, field: SettingField, source: str, shown: str | None, error: ValueError, is_quoted: bool = True
    ) -> None:
        # A URL that is refused may have a password in it.
        is_hidden = field.setting.is_secret or field.setting.unit == "url"
        self.problems.append(SettingProblem(source, None if is_hidden else shown, str(error), is_quoted))


def _shown(given: object) -> str | None:
    """Return a value of a TOML file as it is written there, without quotes."""
    if isinstance(given, bool):
        return "true" if given else "false"
    return str(given) if isinstance(given, str | int | float) else None


def _read_environ(collected: _Collected, environ: Mapping[str, str]) -> None:
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable.startswith(TEST_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        field = BY_VARIABLE.get(variable)
        if is_kubernetes_variable(variable, environ[variable]):
            collected.ignored_variables.append(variable)
        elif field is None:
            # Without its value: a misspelled name may hold a key.
            sentence = _unknown_setting(variable, [*BY_VARIABLE, CONFIG_VARIABLE], PREFIX)
            collected.unknown.append(f"{variable}: ignored: {sentence}")
        else:
            collected.take_text(field, environ[variable], variable)


def _read_file(collected: _Collected, config_file: ConfigFile) -> None:
    path = config_file.path
    try:
        document = tomllib.loads(config_file.text)
    except tomllib.TOMLDecodeError as error:
        collected.problems.append(SettingProblem(path, None, f"is not valid TOML: {error}"))
        return
    for key, given in document.items():
        field = BY_NAME.get(key)
        if field is not None:
            collected.take_typed(field, given, path)
            continue
        if isinstance(given, dict):
            sentence = "settings belong at the top level of the file, not in a table"
        else:
            sentence = _unknown_setting(key, BY_NAME)
        collected.problems.append(SettingProblem(f"{path}: {ascii(key)[1:-1]}", None, sentence))
