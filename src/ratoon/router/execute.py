"""Running a tool: not at all, by HTTP, or as a Python function of the embedding program."""

from __future__ import annotations

import asyncio
import inspect
import json
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from ratoon.errors import ConfigError, InvalidRequest
from ratoon.router.hosts import Hosts
from ratoon.router.strict import as_json, loads

MOCK = "mock"
CALLABLE = "callable"
TIMEOUT_S = 10.0
MAX_RESULT_BYTES = 1 << 20

Functions = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool gave: JSON, or why there is none."""

    value: Any
    is_error: bool = False

    @property
    def text(self) -> str:
        """As a model reads it."""
        return json.dumps(self.value, ensure_ascii=False)


class Executor(Protocol):
    """Runs tools."""

    async def run(self, tool: str, arguments: Mapping[str, Any]) -> Outcome:
        """Never raises for what the tool does."""
        ...


class Mock:
    """Pretends: says what would have been called."""

    async def run(self, tool: str, arguments: Mapping[str, Any]) -> Outcome:
        return Outcome({"status": "ok", "mock": True, "tool": tool, "arguments": dict(arguments)})


class HttpExecutor:
    """Posts ``{"tool", "arguments"}`` to an address that may be called; takes JSON back."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url
        self._timeout_s = timeout_s

    async def run(self, tool: str, arguments: Mapping[str, Any]) -> Outcome:
        body = {"tool": tool, "arguments": dict(arguments)}
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._post(body)
        except TimeoutError:
            return _failed(f"the tool did not answer within {self._timeout_s:g} s")
        except httpx.HTTPError:
            return _failed("the tool's server can't be reached")

    async def _post(self, body: object) -> Outcome:
        async with (
            httpx.AsyncClient(follow_redirects=False, trust_env=False) as client,
            client.stream("POST", self._url, json=body) as answer,
        ):
            if answer.status_code // 100 != 2:
                return _failed(f"the tool's server answered {answer.status_code}")
            content = b""
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > MAX_RESULT_BYTES:
                    return _failed(f"the tool's result is over {MAX_RESULT_BYTES} bytes")
        try:
            return Outcome(loads(content))
        except ValueError:
            return _failed("the tool's result is not JSON")


class FunctionExecutor:
    """Calls Python functions by the tools' names, with the arguments as keywords; those that are
    not coroutines run in worker threads."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions

    async def run(self, tool: str, arguments: Mapping[str, Any]) -> Outcome:
        function = self._functions.get(tool)
        if function is None:
            return _failed(f"no function is registered for the tool {tool}")
        try:
            if inspect.iscoroutinefunction(function):
                return Outcome(as_json(await function(**arguments)))
            return Outcome(as_json(await asyncio.to_thread(function, **arguments)))
        except Exception as error:  # the embedding program's, whatever it is
            return _failed(f"the tool failed: {type(error).__name__}")


def load_functions(spec: str) -> Functions:
    """Those of ``module:name``; the module may lie in the current folder. Raises ConfigError."""
    try:
        if not spec.partition(":")[2]:
            raise ValueError("Input should be module:name")
        sys.path.insert(0, "")
        try:
            found = pkgutil.resolve_name(spec)
        finally:
            sys.path.remove("")
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"tool_functions: can't load {spec}: {error}") from None
    is_usable = isinstance(found, Mapping) and all(
        isinstance(key, str) and callable(value) for key, value in found.items()
    )
    if not is_usable:
        raise ConfigError(f"tool_functions: {spec} is no mapping from names to functions")
    functions: Functions = found
    return functions


def executor(spec: str, hosts: Hosts, functions: Functions) -> Executor:
    """What ``tool_executor`` asks for. Raises InvalidRequest."""
    if spec == MOCK:
        return Mock()
    if spec == CALLABLE:
        if not functions:
            raise InvalidRequest("tool_executor: no Python functions are registered here")
        return FunctionExecutor(functions)
    if "://" in spec:
        return HttpExecutor(hosts.check(spec, "tool_executor"))
    raise InvalidRequest("tool_executor: Input should be 'mock', 'callable' or a URL")


def _failed(reason: str) -> Outcome:
    return Outcome({"error": reason}, is_error=True)
