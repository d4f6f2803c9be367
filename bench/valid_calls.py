"""How many of a model's tool calls are valid, for every tool of recorded traffic.

    python bench/valid_calls.py TRACE... [--model GGUF] [--calls N] [--top-p P] [--any] [--json]

Each tool is offered alone and must be called (``tool_choice`` names it); with ``--any`` all tools
of its request are offered and any of them may be. The user asks for a call with a certain input,
another one each time; with ``--no-task`` only for some call, which a small model may go on with for
ever. A call is valid if it is the whole reply, names the tool and its arguments fit the schema. A
reply that ``max_tokens`` cuts off counts as not valid; nothing is tried twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from ratoon.bench.trace import read_trace
from ratoon.build import build
from ratoon.config import Settings
from ratoon.errors import RatoonError

NO_TASK = "Use a tool now. Answer with its call and with short arguments."
TASK = "Call the tool {name} once, with exactly this input: {input}"
WORDS = ("apple", "bridge", "candle", "garden", "harbor", "island", "kettle", "meadow", "river")
N_AT_ONCE = 8

Tool = dict[str, Any]


@dataclass(slots=True)
class Tally:
    """The calls asked for with one set of tools; the rest of ``n_total`` was cut off."""

    name: str
    n_total: int = 0
    n_valid: int = 0
    n_cut: int = 0
    n_tokens: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def tool_sets(files: Iterable[Path], *, together: bool) -> list[list[Tool]]:
    """Every tool of the traces that has a schema of its own; or every set of tools."""
    found: dict[str, list[Tool]] = {}
    for file in files:
        for request in read_trace(file):
            tools = [bare(tool) for tool in request.body.get("tools") or ()]
            for group in [tools] if together else [[tool] for tool in tools]:
                key = [(tool["name"], tool["input_schema"]) for tool in group]
                found.setdefault(json.dumps(key, sort_keys=True), group)
    return [group for group in found.values() if group]


def bare(tool: Tool) -> Tool:
    """The tool without prose: in traces it is replaced by random words, which a small model goes
    on with for ever. What a value must be stays the same."""
    schema = tool.get("input_schema") or {"type": "object", "properties": {}}
    return {"name": tool["name"], "description": "", "input_schema": without_prose(schema)}


def without_prose(schema: Any) -> Any:
    """The schema without its descriptions; a property of that name stays."""
    if isinstance(schema, list):
        return [without_prose(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: value
        for key, value in schema.items()
        if key != "description" or not isinstance(value, str)
    }
    return {key: without_prose(value) for key, value in kept.items()}


def fault(message: dict[str, Any], tools: Sequence[Tool]) -> str:
    """What is wrong with a reply that should be one call; empty: nothing."""
    schemas = {tool["name"]: tool["input_schema"] for tool in tools}
    if message["stop_reason"] != "tool_use":
        return str(message["stop_reason"])
    if [block["type"] for block in message["content"]] != ["tool_use"]:
        return "not one call"
    call = message["content"][0]
    if call["name"] not in schemas:
        return f"no tool {call['name']!r}"
    errors = Draft202012Validator(schemas[call["name"]]).iter_errors(call["input"])
    return "; ".join(error.message for error in errors)


def example(schema: Any, rng: random.Random, root: dict[str, Any]) -> Any:
    """A small value that fits a schema as tools have them."""
    if "$ref" in schema:
        found: Any = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        return example(found, rng, root)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return example(rng.choice(schema[key]), rng, root)
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        # a call says something, also where nothing is required
        easy = sorted(name for name, value in properties.items() if "pattern" not in value)
        wanted = schema.get("required") or rng.sample(easy, min(1, len(easy)))
        return {name: example(properties.get(name, {}), rng, root) for name in wanted}
    if schema.get("type") == "array":
        n = max(1, schema.get("minItems", 1))
        return [example(schema.get("items", {}), rng, root) for _ in range(n)]
    return plain_example(schema, rng)


def plain_example(schema: Any, rng: random.Random) -> str | int | bool | None:
    """One without parts."""
    if "enum" in schema or "const" in schema:
        chosen: str | int | bool | None = rng.choice(schema.get("enum", [schema.get("const")]))
        return chosen
    match schema.get("type", "string"):
        case "integer" | "number":
            low: int = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
            return min(low + rng.randrange(5), int(schema.get("maximum", 1 << 30)))
        case "boolean":
            return rng.random() < 0.5
        case "null":
            return None
    text = " ".join(rng.sample(WORDS, 2))
    while len(text) < schema.get("minLength", 0):
        text += " " + rng.choice(WORDS)
    return text[: schema.get("maxLength", 1000)]


def task(tools: Sequence[Tool], rng: random.Random) -> str:
    """What the user says. One tool is asked for, whichever may be called."""
    tool = rng.choice(tools)
    value = example(tool["input_schema"], rng, tool["input_schema"])
    Draft202012Validator(tool["input_schema"]).validate(value)
    return TASK.format(name=tool["name"], input=json.dumps(value))


async def ask(
    client: httpx.AsyncClient,
    tools: Sequence[Tool],
    text: str,
    limits: dict[str, Any],
    tally: Tally,
) -> None:
    """One call."""
    choice = {"type": "tool", "name": tools[0]["name"]} if len(tools) == 1 else {"type": "any"}
    body = {
        "model": "m",
        **limits,
        "tools": tools,
        "tool_choice": {**choice, "disable_parallel_tool_use": True},
        "messages": [{"role": "user", "content": text}],
    }
    response = await client.post("/v1/messages", json=body)
    message = response.raise_for_status().json()
    found = fault(message, tools)
    tally.n_total += 1
    tally.n_valid += not found
    tally.n_cut += found == "max_tokens"
    tally.n_tokens.append(message["usage"]["output_tokens"])
    tally.faults += [found] if found not in ("", "max_tokens") else []


async def measure(
    app: Any, groups: Sequence[Sequence[Tool]], args: argparse.Namespace
) -> list[Tally]:
    """Ask for calls, some at once; the first of each group alone, so that the others reuse it."""
    tallies, rng, n_calls = [], random.Random(args.seed), args.calls
    limits = {
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "top_p": args.top_p,
    }
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", timeout=None
    ) as one:
        for tools in groups:
            tally = Tally(tools[0]["name"] if len(tools) == 1 else f"any of {len(tools)}")
            began_s = time.monotonic()
            for n in (1, *[N_AT_ONCE] * (n_calls // N_AT_ONCE), (n_calls - 1) % N_AT_ONCE):
                n = min(n, n_calls - tally.n_total)
                texts = [NO_TASK if args.no_task else task(tools, rng) for _ in range(n)]
                await asyncio.gather(*(ask(one, tools, text, limits, tally) for text in texts))
            tallies.append(tally)
            sys.stderr.write(f"{row(tally)}  {time.monotonic() - began_s:.0f} s\n")
    return tallies


def row(tally: Tally) -> str:
    faults = f"  {tally.faults[0][:60]}" if tally.faults else ""
    return (
        f"{tally.name:28} {tally.n_valid:4} of {tally.n_total:4} valid, {tally.n_cut:3} cut, "
        f"{statistics.median(tally.n_tokens):5.0f} tokens{faults}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path, nargs="+")
    parser.add_argument("--model", help="GGUF file; default: the embedded one")
    parser.add_argument("--calls", type=int, default=10, help="calls for each tool")
    parser.add_argument("--tool", help="only the tools of this name")
    parser.add_argument("--max-tokens", type=int, default=2048)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--any", action="store_true", help="offer all tools of a request at once")
    parser.add_argument("--unconstrained", action="store_true", help="without the grammars")
    parser.add_argument("--no-task", action="store_true", help="ask for no certain input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    try:
        groups = tool_sets(args.trace, together=args.any)
        groups = [tools for tools in groups if args.tool in (None, tools[0]["name"])]
        settings = {"model": args.model, "constrain_tools": not args.unconstrained}
        server = build(Settings(**settings, disk_bytes=0))
    except RatoonError as error:
        sys.exit(str(error))
    server.engine.start()
    try:
        tallies = asyncio.run(measure(server.app, groups, args))
    finally:
        server.engine.stop()
    n_valid, n_total = (sum(getattr(t, key) for t in tallies) for key in ("n_valid", "n_total"))
    if args.json:
        sys.stdout.write(json.dumps([asdict(tally) for tally in tallies]) + "\n")
    else:
        lines = [*map(row, tallies), f"{'all':28} {n_valid:4} of {n_total:4} valid"]
        sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
