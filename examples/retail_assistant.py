"""A shop's assistant in the terminal, on a running Ratoon.

    ratoon serve
    python examples/retail_assistant.py --route-only      # which tool, and its arguments
    python examples/retail_assistant.py                   # the whole pipeline, with mock tools
    python examples/retail_assistant.py --demo            # a few queries, then the end

The language model is the one that is served, or another: --llm-model NAME is one of Ollama's on
this machine; with --llm-base-url URL or --llm-provider it is one of others, with its key in
LLM_API_KEY.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ratoon.client import DEFAULT_URL, ClientError, RatoonClient

TOOLS = Path(__file__).with_name("retail_tools.json")
DOMAIN = "retail"
OLLAMA = "http://localhost:11434/v1"
DEMO = (
    "Do we have the iPhone 16 Pro in stock?",
    "Where is my order ORD-1234?",
    "Take 15 % off order ORD-5678",
    "What's the weather like today?",
)


def main() -> int:
    args = _arguments()
    try:
        with RatoonClient(args.url, os.environ.get("RATOON_API_KEY")) as client:
            tools = json.loads(TOOLS.read_text(encoding="utf-8"))
            domain = client.register_tools(DOMAIN, tools)
            say(f"{domain.num_tools} tools, {domain.prefix_tokens} tokens, kept for all queries")
            for query in DEMO if args.demo else _asked():
                (route if args.route_only else answer)(client, query, _llm(args))
    except ClientError as error:
        say(f"error: {error}")
        return 1
    return 0


def route(client: RatoonClient, query: str, _: dict[str, Any]) -> None:
    """Show the choice."""
    found = client.route(DOMAIN, query, top_k=3)
    say(f"\n> {query}")
    say(f"  {found.tool_name or 'no tool'} ({found.confidence:.0%}) {found.arguments or ''}")
    for each in found.candidates:
        say(f"    {each.probability:7.2%}  {each.name or 'no tool'}")
    say(f"  {found.timings['route_ms']:.0f} ms, {found.cached_tokens} tokens from the cache")


def answer(client: RatoonClient, query: str, llm: dict[str, Any]) -> None:
    """Show each step, then the answer."""
    say(f"\n> {query}")
    for event in client.pipeline_events(DOMAIN, query, **llm):
        if event.name == "route":
            name = event.data["tool_name"] or "no tool"
            say(f"  {name} ({event.data['confidence']:.0%}, {event.data['confidence_level']})")
        elif event.name == "answer":
            say(f"  {event.data['final_response']}")
            say(f"  {event.data['timings']['total_ms']:.0f} ms")
        else:
            result = event.data.get("error") or event.data["result"]
            say(f"  {event.data['tool_name']}({event.data['arguments']}) -> {result}")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _asked() -> Iterator[str]:
    """Queries from the keyboard, until there are no more."""
    while True:
        try:
            query = input("\nyou: ").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if query in ("quit", "exit"):
            return
        if query:
            yield query


def _llm(args: argparse.Namespace) -> dict[str, Any]:
    if not (args.llm_provider or args.llm_model or args.llm_base_url):
        return {}
    is_ollama = not (args.llm_provider or args.llm_base_url)
    return {
        "llm_provider": args.llm_provider or "openai",
        "llm_api_key": os.environ.get("LLM_API_KEY", "none"),
        "llm_model": args.llm_model,
        "llm_base_url": OLLAMA if is_ollama else args.llm_base_url,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default=DEFAULT_URL, help="the server's address")
    parser.add_argument("--route-only", action="store_true", help="choose, and call nothing")
    parser.add_argument("--demo", action="store_true", help="run a few queries and end")
    parser.add_argument("--llm-provider", choices=["openai", "claude"])
    parser.add_argument("--llm-model")
    parser.add_argument("--llm-base-url")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
