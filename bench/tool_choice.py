"""How well tools are chosen, on the Berkeley Function Calling Leaderboard's cases.

    pip download --no-deps bfcl-eval
    python -m bench.tool_choice bfcl_eval-*.whl [--model GGUF] [--sizes 5,...,100] [--queries 60]

For each size a catalogue is drawn from all tools of the cases; queries are cases that one of its
tools answers, and as many that were made so that no tool does. Told are: how often the right tool
is the likeliest (with its 95 % interval, Wilson's), how well "none" is found, how far the
confidence is from how often it is right (expected calibration error, ten bins), and, with
``--full``, whether a choice from kept state and its chances are those of a computation from
nothing. With ``--exact`` they have to be.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench.process import decide, parse_sized, say, server_process
from ratoon.client import RatoonClient, RouteResult

ANSWERED = ("simple_python", "multiple", "live_simple", "live_multiple")
UNANSWERED = ("irrelevance", "live_irrelevance")
# the cases' own names of JSON's types
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
LIMIT_S = 3600.0
N_BINS = 10
MAX_TOOL_BYTES = 2000  # what is longer takes a small model's window


@dataclass(frozen=True, slots=True)
class Case:
    """A query and the tool that answers it; None: none does."""

    query: str
    tool: str | None


@dataclass(slots=True)
class Data:
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)
    answered: dict[str, list[str]] = field(default_factory=dict)  # queries by their tool
    unanswered: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outcome:
    case: Case
    found: str | None
    confidence: float

    @property
    def is_right(self) -> bool:
        return self.case.tool == self.found


def read_data(source: Path) -> Data:
    """From the wheel, or from a folder where it is installed."""
    data = Data()
    for name in ANSWERED:
        truths = {item["id"]: item["ground_truth"] for item in _items(source, name, is_truth=True)}
        for item in _items(source, name):
            names = {call for each in truths.get(item["id"], ()) for call in each}
            _add_tools(data, item["function"])
            if len(names) == 1 and (query := _query(item)):
                data.answered.setdefault(names.pop(), []).append(query)
    for name in UNANSWERED:
        for item in _items(source, name):
            if query := _query(item):
                data.unanswered.append(query)
    data.answered = {name: found for name, found in data.answered.items() if name in data.tools}
    return data


def _items(source: Path, name: str, *, is_truth: bool = False) -> Iterator[dict[str, Any]]:
    inner = f"bfcl_eval/data/{'possible_answer/' if is_truth else ''}BFCL_v4_{name}.json"
    if source.is_dir():
        text = (source / inner).read_text(encoding="utf-8")
    else:
        with zipfile.ZipFile(source) as wheel:
            text = wheel.read(inner).decode("utf-8")
    for line in text.splitlines():
        if line.strip():
            yield json.loads(line)


def _query(item: dict[str, Any]) -> str:
    """The user's words, where they are all there is."""
    turns = item["question"]
    if len(turns) != 1 or any(message["role"] != "user" for message in turns[0]):
        return ""
    return "\n".join(message["content"] for message in turns[0]).strip()


def _add_tools(data: Data, functions: Iterable[dict[str, Any]]) -> None:
    for function in functions:
        schema = _as_json_schema(function.get("parameters") or {})
        shown = {
            "name": function["name"],
            "description": function.get("description") or "",
            "input_schema": {**schema, "type": "object"},
        }
        if len(json.dumps(shown)) <= MAX_TOOL_BYTES:
            data.tools.setdefault(function["name"], shown)


def _as_json_schema(value: Any) -> Any:
    if isinstance(value, dict):
        found = {key: _as_json_schema(item) for key, item in value.items()}
        if isinstance(found.get("type"), str):
            found["type"] = TYPES.get(found["type"], found["type"])
        return found
    return [_as_json_schema(item) for item in value] if isinstance(value, list) else value


def draw(data: Data, size: int, n_queries: int, seed: int) -> tuple[list[str], list[Case]]:
    """A catalogue and its queries; as many that have a tool as that have none."""
    chance = random.Random(f"{seed} {size}")
    names = chance.sample(sorted(data.answered), size)
    known = [Case(query, name) for name in names for query in data.answered[name]]
    cases = chance.sample(known, min(n_queries, len(known)))
    unknown = chance.sample(data.unanswered, len(cases))
    return names, cases + [Case(query, None) for query in unknown]


def interval(n_right: int, n: int) -> tuple[float, float]:
    """Wilson's, of 95 %."""
    if not n:
        return 0.0, 1.0
    z, share = 1.96, n_right / n
    middle = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return (middle - half) / scale, (middle + half) / scale


def calibration_error(outcomes: Sequence[Outcome]) -> float:
    """Expected calibration error: by bins of confidence, how far it is from how often it is right,
    weighted by the bins' sizes."""
    bins: list[list[Outcome]] = [[] for _ in range(N_BINS)]
    for one in outcomes:
        bins[min(N_BINS - 1, int(one.confidence * N_BINS))].append(one)
    return sum(
        abs(sum(one.confidence for one in each) - sum(one.is_right for one in each))
        for each in bins
    ) / len(outcomes)


def is_same(left: RouteResult, right: RouteResult) -> bool:
    return left.tool_name == right.tool_name and left.candidates == right.candidates


def measure(
    client: RatoonClient, admin: httpx.Client, data: Data, args: argparse.Namespace, size: int
) -> tuple[list[Outcome], int, int]:
    """Outcomes, and how many of how many true hits were those of a full computation."""
    names, cases = draw(data, size, args.queries, args.seed)
    client.register_tools("eval", [data.tools[name] for name in names])
    outcomes = []
    kept: list[RouteResult] = []
    for case in cases:
        found = decide(client, "eval", case.query, top_k=size + 1)
        kept.append(found)
        outcomes.append(Outcome(case, found.tool_name, found.confidence))
    n_same = n_hits = 0
    for case, found in zip(cases[: args.full], kept, strict=False):
        admin.post("/admin/evict").raise_for_status()
        full = decide(client, "eval", case.query, top_k=size + 1)
        if full.cached_tokens <= 1 and found.cached_tokens > 1:
            n_hits += 1
            n_same += is_same(full, found)
    return outcomes, n_same, n_hits


def report(size: int, outcomes: Sequence[Outcome], n_same: int, n_hits: int) -> None:
    known = [one for one in outcomes if one.case.tool is not None]
    n_right = sum(one.is_right for one in known)
    low, high = interval(n_right, len(known))
    said_none = [one for one in outcomes if one.found is None]
    n_true = sum(one.case.tool is None for one in said_none)
    n_none = len(outcomes) - len(known)
    precision = f"{n_true / len(said_none):.2f}" if said_none else "-"
    say(
        f"{size} tools: right {n_right} of {len(known)} ({n_right / len(known):.3f}, {low:.3f} to "
        f"{high:.3f}); none: precision {precision}, recall {n_true / n_none:.2f}; calibration "
        f"error {calibration_error(outcomes):.3f}; same from kept state {n_same} of {n_hits}"
    )


def main() -> int:
    args = _arguments()
    data = read_data(args.data)
    say(
        f"{len(data.tools)} tools, {sum(map(len, data.answered.values()))} queries with a tool, "
        f"{len(data.unanswered)} without"
    )
    flags = ["--model", str(args.model.resolve()), "--no-progress", "--disk-bytes", "0"]
    flags += ["--exact"] if args.exact else []
    n_same = n_hits = 0
    with (
        tempfile.TemporaryDirectory(prefix="ratoon-choice-") as folder,
        server_process(Path(folder), *flags) as server,
        RatoonClient(server.url, timeout=LIMIT_S) as client,
        httpx.Client(base_url=server.url, timeout=LIMIT_S) as admin,
    ):
        for size in args.sizes:
            outcomes, same, hits = measure(client, admin, data, args, size)
            report(size, outcomes, same, hits)
            n_same, n_hits = n_same + same, n_hits + hits
    say(
        f"in all, {n_same} of {n_hits} choices and chances from kept state are those of a full "
        "computation"
    )
    return 0 if n_same == n_hits or not args.exact else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="the wheel of bfcl-eval, or where it is unpacked")
    parser.add_argument("--queries", type=int, default=60, help="with a tool, for each size")
    parser.add_argument("--full", type=int, default=0, help="of them, computed in full, too")
    parser.add_argument("--exact", action="store_true", help="in exact mode")
    parser.add_argument("--seed", type=int, default=0)
    return parse_sized(parser, [5, 10, 20, 30, 50, 75, 100])


if __name__ == "__main__":
    sys.exit(main())
