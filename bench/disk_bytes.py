"""What a snapshot file costs: does compressing KV bytes pay, and how fast are sums and the disk?

    python bench/disk_bytes.py [--model GGUF] [--n-tokens 1024] [--folder DIR] [--json]

Computes a prompt from this project's own texts, saves its state with f16 and with q8_0 keys and
values, and measures on these bytes: zstd levels 1 to 3, plain and with the bytes of each 16-bit
number parted; the sums that could guard a file; writing, reading and loading one. Compression needs
the package ``zstandard``; without it these rows are left out.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from ratoon.cache.placement import SeqId
from ratoon.disk.files import StateFiles
from ratoon.disk.fingerprint import Fingerprint
from ratoon.disk.format import State, block_sum, pack_head, state_key
from ratoon.engine.llama import load_model
from ratoon.engine.model import Chunk
from ratoon.engine.options import ModelOptions
from ratoon.weights import check_weights, embedded_weights

ROOT = Path(__file__).parents[1]
TEXTS = ("README.md", "ARCHITECTURE.md", "src/ratoon/cache/prefix_cache.py")
N_REPEATS = 3

Row = dict[str, str | float]


def kv_bytes(model: Path, kv_type: str, n_tokens: int) -> tuple[list[int], bytes]:
    """A real prompt and its saved state."""
    llama = load_model(model, ModelOptions(n_ctx=n_tokens + 256, kv_type=kv_type))
    text = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in TEXTS)
    tokens = llama.vocab.tokenize(text)[:n_tokens]
    step = llama.shape.n_batch
    for i in range(0, len(tokens), step):
        llama.forward([Chunk(SeqId(0), i, tokens[i : i + step], False)])
    data = bytes(llama.save(SeqId(0)))
    llama.close()
    return tokens, data


def best_s(use: Callable[[], object]) -> float:
    """The shortest of a few runs: what the work itself takes on a shared machine."""
    times = []
    for _ in range(N_REPEATS):
        start = time.perf_counter()
        use()
        times.append(time.perf_counter() - start)
    return min(times)


def rates(data: bytes, **uses: Callable[[], object]) -> Row:
    return {f"{name} MB/s": len(data) / 1e6 / best_s(use) for name, use in uses.items()}


def compression(data: bytes) -> Iterator[Row]:
    if importlib.util.find_spec("zstandard") is None:
        return
    zstd = importlib.import_module("zstandard")
    for name, raw in (("zstd", data), ("zstd, bytes parted", data[::2] + data[1::2])):
        for level in (1, 2, 3):
            pack = zstd.ZstdCompressor(level=level).compress
            unpack = zstd.ZstdDecompressor().decompress
            packed = pack(raw)
            speeds = rates(data, pack=lambda: pack(raw), unpack=lambda: unpack(packed))  # noqa: B023
            yield {"what": f"{name} {level}", "ratio": len(raw) / len(packed), **speeds}


def sums(data: bytes) -> Iterator[Row]:
    view = memoryview(data)
    uses: dict[str, Callable[[], object]] = {
        "crc32": lambda: zlib.crc32(data),
        "blake2b": lambda: hashlib.blake2b(data).digest(),
        "sha256": lambda: hashlib.sha256(data).digest(),
        "sha256 of blocks": lambda: block_sum(len(data), lambda start, end: view[start:end]),
    }
    for name, use in uses.items():
        yield {"what": name, **rates(data, sum=use)}


def disk(tokens: list[int], data: bytes, folder: Path) -> Iterator[Row]:
    """A snapshot file written and synced, then read with and without the page cache."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        files = StateFiles(Path(name))
        digest = Fingerprint("bench", "", "", "", "").digest
        state = State(tokens, memoryview(data))
        key = state_key(digest, state.kind, tokens)
        speeds = rates(
            data,
            write=lambda: files.write(key, (pack_head(digest, "", state), data)),
            load=lambda: files.load(key, digest),
            read=lambda: files.path(key).read_bytes(),
        )
        yield {"what": "snapshot file, in the page cache", **speeds}
        yield {
            "what": "snapshot file, from the disk",
            "load MB/s": len(data) / 1e6 / best_s(lambda: _cold_load(files, key)),
        }


def _cold_load(files: StateFiles, key: str) -> None:
    fd = os.open(files.path(key), os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    files.load(key, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, help="GGUF file; default: the embedded model")
    parser.add_argument("--n-tokens", type=int, default=1024, help="length of the prompt")
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    model = check_weights(options.model or embedded_weights())
    report: dict[str, list[Row]] = {}
    for kv_type in ("f16", "q8_0"):
        tokens, data = kv_bytes(model, kv_type, options.n_tokens)
        title = f"{kv_type}: {len(tokens)} tokens, {len(data) / 1e6:.1f} MB"
        report[title] = [*compression(data), *sums(data), *disk(tokens, data, options.folder)]
    if options.json:
        json.dump(report, sys.stdout, indent=2)
        return
    for title, rows in report.items():
        sys.stdout.write(f"{title}\n")
        for row in rows:
            facts = (f"{name} {value:.2f}" for name, value in row.items() if name != "what")
            sys.stdout.write(f"  {row['what']:<34}{'  '.join(facts)}\n")


if __name__ == "__main__":
    main()
