"""Command-line flags made from the settings, so that no setting is without one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ByteSize, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ratoon.config import Settings, env_name, flag_name, load_settings

SHORT = {"model": "-m", "port": "-p", "config": "-c"}
# the settings come in groups: from each of these on, the help starts a new one
PANELS = {
    "model": "Model",
    "host": "Network",
    "n_ctx": "Context and computing",
    "prefill_chunk": "Sharing and memory",
    "progress": "Streams",
    "temperature": "Sampling, where a request says nothing",
    "drop_billing": "Prompt",
    "max_domains": "Router",
    "log_level": "Logging",
}
METAVARS = {
    "hf": "OWNER/REPO:FILE",
    "chat_template": "FILE",
    "host_bytes": "SIZE",
    "replay_bytes": "SIZE",
    "cache_dir": "FOLDER",
    "disk_bytes": "SIZE",
    "keys_file": "FILE",
    "preload": "ID=FILE,...",
    "allow_hosts": "HOST,...",
    "tool_functions": "MODULE:NAME",
}
_CONFIG_HELP = "TOML file with settings; default: ratoon.toml in this folder, if there is one."


def with_settings(run: Callable[[Settings], None]) -> Callable[..., None]:
    """A command that has one flag for each setting and calls ``run`` with the result.

    Values reach the settings as the user typed them, so one place judges them and words the error.
    """

    def command(config: Path | None, **given: Any) -> None:
        flags = {name: value for name, value in given.items() if value is not None}
        run(load_settings(flags, config))

    config_flag = Annotated[
        Path | None, typer.Option("--config", SHORT["config"], help=_CONFIG_HELP, metavar="FILE")
    ]
    parameters = [_parameter("config", config_flag), *_parameters()]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    command.__doc__ = run.__doc__
    return command


def _parameters() -> Iterator[inspect.Parameter]:
    panel = ""
    for name, field in Settings.model_fields.items():
        panel = PANELS.get(name, panel)
        yield _parameter(name, _flag(name, field, panel))


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=None, annotation=annotation)


def _flag(name: str, field: FieldInfo, panel: str) -> Any:
    flag, text = flag_name(name), f"{field.description}."
    is_switch, default = field.annotation is bool, field.default
    if field.annotation == SecretStr | None:
        text += f" Better given as {env_name(name)}: flags show in the process list."
    if default is not None and default not in ("", PydanticUndefined):
        shown = ("off", "on")[default] if is_switch else default
        if isinstance(default, ByteSize) and default:
            shown = default.human_readable()
        text += f" \\[default: {shown}]"
    names = [f"{flag}/--no-{flag[2:]}" if is_switch else flag]
    names += [SHORT[name]] if name in SHORT else []
    option = typer.Option(
        *names, help=text, metavar=_metavar(name, field), show_default=False, rich_help_panel=panel
    )
    return Annotated[bool | None, option] if is_switch else Annotated[str | None, option]


def _metavar(name: str, field: FieldInfo) -> str | None:
    if name in METAVARS or field.annotation is bool:
        return METAVARS.get(name)
    choices = getattr(field.annotation, "__args__", ())
    if choices and all(isinstance(choice, str) for choice in choices):
        return "|".join(choices)
    if isinstance(field.default, int):
        return "N"
    return "X" if isinstance(field.default, float) else "TEXT"
