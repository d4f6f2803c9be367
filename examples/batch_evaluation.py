"""How often a domain's tools are chosen rightly, on queries of your own.

    python examples/batch_evaluation.py TOOLS.json QUERIES.jsonl

Each line of QUERIES.jsonl is {"query": "...", "tool": "name"}, or "tool": null where none is right.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path

from ratoon.client import DEFAULT_URL, ClientError, RatoonClient

BATCH = 64


def main() -> int:
    args = _arguments()
    tools = json.loads(args.tools.read_text(encoding="utf-8"))
    lines = args.queries.read_text(encoding="utf-8").splitlines()
    cases = [json.loads(line) for line in lines if line.strip()]
    wrong: Counter[tuple[str, str]] = Counter()
    try:
        with RatoonClient(args.url, os.environ.get("RATOON_API_KEY")) as client:
            client.register_tools("evaluation", tools)
            for start in range(0, len(cases), BATCH):
                batch = cases[start : start + BATCH]
                found = client.route_batch("evaluation", [case["query"] for case in batch])
                for case, one in zip(batch, found, strict=True):
                    if one.error or one.tool_name != case["tool"]:
                        wrong[str(case["tool"]), one.error or str(one.tool_name)] += 1
                say(f"{min(start + BATCH, len(cases))} of {len(cases)}")
            client.remove_tools("evaluation")
    except ClientError as error:
        say(f"error: {error}")
        return 1
    n_right = len(cases) - wrong.total()
    say(f"right: {n_right} of {len(cases)} ({n_right / len(cases):.1%})")
    for (wanted, given), n in wrong.most_common(20):
        say(f"{n:5d}  {wanted} -> {given}")
    return 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tools", type=Path, help="a JSON list of tools")
    parser.add_argument("queries", type=Path, help="JSON lines of queries and their tools")
    parser.add_argument("--url", default=DEFAULT_URL, help="the server's address")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
