"""Command-line flags made from the settings, so that no setting is without one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from ratoon.config import Settings, env_name, flag_name, load_settings

SHORT = {"model": "-m", "port": "-p", "config": "-c"}
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
    parameters = [_parameter("config", config_flag)]
    parameters += [
        _parameter(name, _flag(name, field)) for name, field in Settings.model_fields.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    command.__doc__ = run.__doc__
    return command


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=None, annotation=annotation)


def _flag(name: str, field: FieldInfo) -> Any:
    text = f"{field.description}."
    flag = flag_name(name)
    if field.annotation is bool:
        text += f" \\[default: {'on' if field.default else 'off'}]"
        option = typer.Option(f"{flag}/--no-{flag[2:]}", help=text, show_default=False)
        return Annotated[bool | None, option]
    if field.default is not None:
        text += f" \\[default: {field.default}]"
    names = [flag, SHORT[name]] if name in SHORT else [flag]
    metavar = _metavar(field)
    if field.annotation == SecretStr | None:
        text += f" Better given as {env_name(name)}: flags show in the process list."
    return Annotated[
        str | None, typer.Option(*names, help=text, metavar=metavar, show_default=False)
    ]


def _metavar(field: FieldInfo) -> str:
    choices = getattr(field.annotation, "__args__", ())
    if choices and all(isinstance(choice, str) for choice in choices):
        return "|".join(choices)
    if isinstance(field.default, int):
        return "N"
    return "X" if isinstance(field.default, float) else "TEXT"
