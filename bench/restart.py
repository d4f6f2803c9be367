"""How soon a prompt's first token comes after a restart, against computing the prompt.

    python -m bench.restart [--model GGUF] [--pairs 5] [--n-tokens 6000] [--folder DIR] [--json]

A pair is one new prompt, sent to two servers just started: one that has nothing, and one that
finds the state on the disk, where an earlier process wrote it. Which of the two goes first
alternates, so that a machine that grows slower or faster favours neither. The files are dropped
from the page cache before the restart. Exit code 1 if the median ratio is above ``--bar``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.process import ServerProcess, server_process
from ratoon.errors import RatoonError
from ratoon.weights import check_weights, embedded_weights
from tests.sessions import prose

LIMIT_S = 1800.0


@dataclass(frozen=True, slots=True)
class First:
    """The first token of a reply: seconds until it came, and what the prompt took."""

    ttft_s: float
    n_prompt: int
    n_cached: int


@dataclass(frozen=True, slots=True)
class Pair:
    cold: First
    restored: First

    @property
    def ratio(self) -> float:
        return self.restored.ttft_s / self.cold.ttft_s


@dataclass(frozen=True, slots=True)
class Trial:
    """One prompt and where it is tried."""

    folder: Path
    flags: tuple[str, ...]
    body: dict[str, Any]

    def run(self, *, cold_first: bool) -> Pair:
        """Measure both; the cold one may leave the state for the other, else it is prepared."""
        kept = ("--cache-dir", str(self.folder / "kept"))
        if cold_first:
            cold = self._compute(kept)
            return Pair(cold, self._restore(kept))
        self._compute(kept)
        restored = self._restore(kept)
        return Pair(self._compute(("--cache-dir", str(self.folder / "other"))), restored)

    def _compute(self, states: tuple[str, ...]) -> First:
        with server_process(self.folder, *self.flags, *states) as server:
            first = self._send(server, "cold")
            server.stop()
        return first

    def _restore(self, states: tuple[str, ...]) -> First:
        drop_from_page_cache(Path(states[-1]))
        with server_process(self.folder, *self.flags, *states) as server:
            return self._send(server, "disk")

    def _send(self, server: ServerProcess, layer: str) -> First:
        first = first_token(server.url, self.body)
        found = server.ended[0].layer
        if found != layer:
            sys.exit(f"the prompt was continued from {found}, not {layer}\n{server.log}")
        return first


def drop_from_page_cache(folder: Path) -> None:
    """Have the files read from the disk itself, as after a reboot."""
    for file in folder.glob("*.state"):
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def first_token(url: str, body: dict[str, Any]) -> First:
    """Send a prompt and read its stream to the end."""
    began_s = time.perf_counter()
    ttft_s = 0.0
    usage: dict[str, int] = {}
    with httpx.stream("POST", f"{url}/v1/messages", json=body, timeout=LIMIT_S) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data:"):
                continue
            event = json.loads(line.removeprefix("data:"))
            if event["type"] == "content_block_delta":
                ttft_s = ttft_s or time.perf_counter() - began_s
            usage |= event.get("usage") or event.get("message", {}).get("usage") or {}
    if not ttft_s:
        sys.exit("the reply has no text")
    n_cached = usage["cache_read_input_tokens"]
    n_prompt = usage["input_tokens"] + usage["cache_creation_input_tokens"] + n_cached
    return First(ttft_s, n_prompt, n_cached)


def make_body(seed: int, n_tokens: int) -> dict[str, Any]:
    """A prompt of about so many tokens that begins like no other."""
    n_words = n_tokens * 17 // 20  # of this vocabulary, full stops included
    text = prose(seed, "restart", n_words)
    messages = [{"role": "user", "content": f"{text}\n\nSay it in one word."}]
    return {"model": "local", "max_tokens": 4, "temperature": 0, "stream": True} | {
        "messages": messages
    }


def measure(flags: tuple[str, ...], folder: Path, n_pairs: int, n_tokens: int) -> list[Pair]:
    pairs = []
    for n in range(n_pairs):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            trial = Trial(Path(name), flags, make_body(n, n_tokens))
            pair = trial.run(cold_first=n % 2 == 0)
        pairs.append(pair)
        sys.stderr.write(f"{row(pair)}\n")
    return pairs


def row(pair: Pair) -> str:
    return (
        f"{pair.cold.n_prompt} tokens: cold {pair.cold.ttft_s:.2f} s, after a restart "
        f"{pair.restored.ttft_s:.2f} s ({pair.restored.n_cached} from disk), "
        f"ratio {pair.ratio:.3f}"
    )


def summary(pairs: list[Pair]) -> dict[str, float]:
    """Medians over the pairs; ``ratio`` is that of the ratios within a pair."""
    ratios = [pair.ratio for pair in pairs]
    return {
        "pairs": len(pairs),
        "cold_s": statistics.median(pair.cold.ttft_s for pair in pairs),
        "restored_s": statistics.median(pair.restored.ttft_s for pair in pairs),
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, help="GGUF file; default: the embedded one")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--n-tokens", type=int, default=6000, help="length of each prompt, about")
    parser.add_argument("--bar", type=float, default=0.10, help="largest ratio that is good enough")
    parser.add_argument("--folder", type=Path, help="where to keep states; default: temporary")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    try:
        model = check_weights(options.model or embedded_weights())
    except RatoonError as error:
        sys.exit(str(error))
    flags = ("--model", str(model), "--n-ctx", str(options.n_tokens + 2048))
    pairs = measure(flags, options.folder, options.pairs, options.n_tokens)
    result = summary(pairs)
    if options.json:
        rows = [asdict(pair) | {"ratio": pair.ratio} for pair in pairs]
        sys.stdout.write(json.dumps({**result, "bar": options.bar, "rows": rows}, indent=2) + "\n")
    else:
        sys.stdout.write(
            "{pairs} pairs, medians: cold {cold_s:.2f} s, after a restart {restored_s:.2f} s, "
            "ratio {ratio:.3f} (from {ratio_min:.3f} to {ratio_max:.3f})\n".format(**result)
        )
    is_good = result["ratio"] <= options.bar
    sys.stdout.write("" if options.json else f"{'PASS' if is_good else 'FAIL'}\n")
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
