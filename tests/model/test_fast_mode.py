"""Fast mode: llama.cpp's numbers depend on how rows are batched, cache or no cache.

How often cached replies differ from cold ones is printed beside a control: how often two cold runs
differ from each other when only their batches do (alone in one chunk; four side by side in small
chunks). The cache may not add to that.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ratoon.cache.placement import SeqId
from ratoon.engine.engine import Engine, EngineConfig
from ratoon.engine.events import Event
from ratoon.engine.llama import LlamaModel, load_model
from ratoon.engine.model import Chunk
from ratoon.engine.options import ModelOptions
from ratoon.engine.request import Request

pytestmark = pytest.mark.model

N_REPLY = 6
N_PROMPTS = 24


def cold_replies(model: LlamaModel, prompts: list[list[int]], chunk: int) -> list[list[int]]:
    """Greedy replies to prompts computed side by side from nothing, in chunks of ``chunk``."""
    tokens = [list(prompt) for prompt in prompts]
    starts = [0] * len(prompts)
    targets = [len(prompt) + N_REPLY for prompt in prompts]
    while open_ := [i for i, target in enumerate(targets) if len(tokens[i]) < target]:
        chunks = []
        for i in open_:
            part = tokens[i][starts[i] : starts[i] + chunk]
            ends = starts[i] + len(part) == len(tokens[i])
            chunks.append(Chunk(SeqId(i), starts[i], part, wants_logits=ends))
            starts[i] += len(part)
        for i, logits in zip(open_, model.forward(chunks), strict=True):
            if logits is not None:
                tokens[i].append(int(logits.argmax()))
    for i in range(len(prompts)):
        model.drop(SeqId(i), 0)
    return [each[len(prompt) :] for each, prompt in zip(tokens, prompts, strict=True)]


def cached_replies(model: LlamaModel, prompts: list[list[int]]) -> tuple[list[list[int]], int]:
    """Replies of an engine that reuses what it can, requests in waves; and the reused tokens."""
    engine = Engine(model, EngineConfig(prefill_chunk=48))
    requests = [Request(str(i), p, N_REPLY, emit=_ignore) for i, p in enumerate(prompts)]
    for i in range(0, len(requests), 4):
        for request in requests[i : i + 4]:
            engine.submit(request)
        engine.step()
        while not engine.scheduler.is_idle:
            engine.step()
        if i % 8:
            engine.cache.offload_all(0.0)
    return [request.output for request in requests], sum(r.n_cached for r in requests)


def _ignore(event: Event) -> None:
    pass


def branching_prompts(model: LlamaModel, rng: random.Random) -> list[list[int]]:
    """Texts that share beginnings of various lengths."""
    words = ["river", "stone", "light", "garden", "winter", "letter", "engine", "forest"]

    def text(n: int) -> list[int]:
        return model.vocab.tokenize(" ".join(rng.choice(words) for _ in range(n)) + " ")

    prompts = [text(60)]
    while len(prompts) < N_PROMPTS:
        base = rng.choice(prompts)
        prompts.append(base[: rng.randint(10, len(base))] + text(rng.randint(4, 30)))
    return prompts


def test_the_cache_adds_no_divergence(
    smollm2_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load_model(smollm2_path, ModelOptions(n_ctx=1024, n_seq=16))
    prompts = branching_prompts(model, random.Random(5))
    try:
        cold = [cold_replies(model, [prompt], 512)[0] for prompt in prompts]
        waves = [prompts[i : i + 4] for i in range(0, N_PROMPTS, 4)]
        control = [reply for wave in waves for reply in cold_replies(model, wave, 48)]
        cached, n_reused = cached_replies(model, prompts)
    finally:
        model.close()
    n_cached = sum(a != b for a, b in zip(cold, cached, strict=True))
    n_control = sum(a != b for a, b in zip(cold, control, strict=True))
    n_tokens = sum(map(len, prompts))
    with capsys.disabled():
        print(  # noqa: T201 - the figure is the point of this test
            f"\nfast mode, {N_PROMPTS} prompts, {n_reused}/{n_tokens} tokens reused: "
            f"{n_cached} cached replies differ from cold ones; "
            f"control (cold against cold, other batches): {n_control}"
        )
    assert n_reused > n_tokens // 2
    # numbers this small scatter; a wrong state would make most replies differ
    assert n_cached <= n_control + N_PROMPTS // 4
