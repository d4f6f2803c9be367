"""Every kind of memory: what llama.cpp says of it, and how little of a session it computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.oracle import make_renderer, measure
from ratoon.bench import sessions
from ratoon.bench.replay import ReplayOptions, replay
from ratoon.bench.trace import read_trace
from ratoon.cache.placement import MemoryKind, SeqId
from ratoon.config import Settings
from ratoon.engine.llama import LlamaModel, load_model
from ratoon.engine.model import Chunk
from ratoon.engine.options import ModelOptions
from ratoon.errors import ModelError
from tests.model.live import live
from tests.synthetic.tiny import HEAD, RECIPES, WINDOW

pytestmark = pytest.mark.model

MEMORY = {
    "llama": MemoryKind.FULL,
    "qwen3": MemoryKind.FULL,
    "gemma3": MemoryKind.WINDOW,
    "mamba2": MemoryKind.RECURRENT,
    "granitehybrid": MemoryKind.HYBRID,
    "lfm2": MemoryKind.HYBRID,
    "qwen35": MemoryKind.HYBRID,
    "qwen3next": MemoryKind.HYBRID,
}
SLACK = 1.10  # what may be forwarded, against what a perfect cache of that memory would
A, B = SeqId(0), SeqId(1)

each_kind = pytest.mark.parametrize("name", RECIPES)


def forward(model: LlamaModel, seq_id: SeqId, start: int, n: int) -> None:
    tokens = [7 + (start + i) % 1000 for i in range(n)]
    model.forward([Chunk(seq_id, start, tokens, wants_logits=False)])


@each_kind
def test_the_shape_tells_the_memory_and_its_bytes(
    tiny_path: Callable[[str], Path], name: str
) -> None:
    model = load_model(tiny_path(name), ModelOptions(n_ctx=1024, n_seq=2, n_batch=512))
    try:
        shape = model.shape
        assert shape.memory is MEMORY[name]
        assert shape.window == (WINDOW if name == "gemma3" else 0)
        for n in (200, 400):
            forward(model, A, 0, n)
            expected = n * shape.bytes_per_token + shape.state_bytes
            assert len(model.save(A)) == pytest.approx(expected, rel=0.05)
            if shape.state_bytes:
                assert len(model.save_part(A)) == pytest.approx(shape.state_bytes, rel=0.05)
            model.drop(A, 0)
    finally:
        model.close()
    n_full = {"llama": 4, "qwen3": 4, "mamba2": 0}.get(name, 2)  # layers that keep every token
    assert shape.bytes_per_token == pytest.approx(n_full * 2 * 2 * HEAD, rel=0.15)


def test_a_window_that_is_gone_is_noticed(tiny_path: Callable[[str], Path]) -> None:
    """llama.cpp cuts without a word, and then computes with what is left."""
    model = load_model(tiny_path("gemma3"), ModelOptions(n_ctx=1024, n_seq=2))
    try:
        forward(model, A, 0, 300)
        model.restore(B, model.save(A))
        model.drop(B, 299)
        with pytest.raises(ModelError):
            model.drop(B, 280)
    finally:
        model.close()


def test_recurrent_memory_refuses_to_be_cut(tiny_path: Callable[[str], Path]) -> None:
    model = load_model(tiny_path("mamba2"), ModelOptions(n_ctx=1024, n_seq=2))
    try:
        forward(model, A, 0, 20)
        with pytest.raises(ModelError):
            model.drop(A, 19)
    finally:
        model.close()


@each_kind
@pytest.mark.parametrize(
    "records",
    [
        sessions.fan_out(3, 2, seed=2),
        [*sessions.coding(2, seed=3), *sessions.continued(2, 2, seed=3)],
    ],
    ids=["fan_out", "continued"],
)
def test_a_session_forwards_what_a_perfect_cache_would(
    tiny_path: Callable[[str], Path], name: str, records: list[sessions.Record], tmp_path: Path
) -> None:
    path = tiny_path(name)
    trace = read_trace(sessions.write(records, tmp_path / "trace.jsonl"))
    is_whole = not MEMORY[name].can_trim
    rows = measure(trace, make_renderer(path, None), is_whole=is_whole)
    with live(Settings(model=str(path), n_ctx=4096, threads=1)) as server:
        first, again = (replay(trace, ReplayOptions(server.url, max_tokens=4)) for _ in range(2))
    assert first.errors == again.errors == []
    assert first.n_forwarded <= SLACK * sum(int(row["n_forwarded"]) for row in rows)
    assert again.n_forwarded < 0.01 * first.n_prompt


@each_kind
def test_a_session_survives_a_small_device_and_a_small_host(
    tiny_path: Callable[[str], Path], name: str, tmp_path: Path
) -> None:
    records = sessions.fan_out(4, 2, seed=5)
    trace = read_trace(sessions.write(records, tmp_path / "trace.jsonl"))
    settings = Settings(
        model=str(tiny_path(name)), n_ctx=2048, n_cells=3072, n_seq=2, host_bytes=300_000, threads=1
    )
    with live(settings) as server:
        report = replay(trace, ReplayOptions(server.url, max_tokens=4))
        with server.engine._lock:
            server.engine.cache.check()
            stats = server.engine.cache.stats()
    assert report.errors == []
    assert report.n_forwarded < 0.8 * report.n_prompt
    assert stats["host_bytes"] <= stats["host_max_bytes"]
