"""gpt-oss's channels against the published parser of the format."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import openai_harmony as harmony  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratoon.chat.deltas import Delta, TextDelta, ThinkingDelta, ToolEnd, ToolInput, ToolStart
from ratoon.chat.formats.table import DIALECTS
from ratoon.chat.parser import ReplyParser
from tests.unit.chat.fakes import joined

VOCABULARY = "o200k_base.tiktoken"
FOLDER = "TIKTOKEN_ENCODINGS_BASE"
N_RANKS = 199_998


@pytest.fixture(scope="module")
def encoding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[harmony.HarmonyEncoding]:
    """The published encoding; its vocabulary has to be on the machine."""
    with pytest.MonkeyPatch.context() as patch:
        if not Path(os.environ.get(FOLDER, "none"), VOCABULARY).is_file():
            patch.setenv(FOLDER, str(written_vocabulary(tmp_path_factory.mktemp("vocabulary"))))
        yield harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


def written_vocabulary(folder: Path) -> Path:
    """The vocabulary as a file, by a package that brings its tokens."""
    reason = f"harmony needs {VOCABULARY}: name its folder in {FOLDER}, or install bpe-openai"
    ranks = pytest.importorskip("bpe_openai", reason=reason).get_encoding("o200k_base")
    lines = (
        f"{base64.b64encode(ranks.decode_bytes([rank])).decode()} {rank}\n"
        for rank in range(N_RANKS)
    )
    (folder / VOCABULARY).write_text("".join(lines))
    return folder


ARGUMENTS = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=20), max_size=3)
SPACE = st.sampled_from(["", " "])
TEXT = st.text(min_size=1, max_size=40).filter(lambda text: "<|" not in text)


@st.composite
def messages(draw: st.DrawFn) -> str:
    """One message as the model writes it behind ``<|start|>assistant``."""
    match draw(st.sampled_from(["analysis", "commentary", "final", "call", "early call"])):
        case "call":
            kind = draw(st.sampled_from(["", " json", " <|constrain|>json"]))
            header = f"<|channel|>commentary to=functions.read{kind}"
        case "early call":
            header = " to=functions.read<|channel|>commentary json"
        case channel:
            return f"<|channel|>{channel}<|message|>{draw(TEXT)}<|end|>"
    body = json.dumps(draw(ARGUMENTS), ensure_ascii=draw(st.booleans()))
    return f"{header}<|message|>{body}<|call|>"


def as_published(encoding: harmony.HarmonyEncoding, tokens: list[int]) -> list[Delta]:
    parser = harmony.StreamableParser(encoding, harmony.Role.ASSISTANT)
    for token in tokens:
        parser.process(token)
    number = count(1)
    deltas: list[Delta] = []
    for message in parser.messages:
        content = message.content[0]
        assert isinstance(content, harmony.TextContent)
        if message.recipient is not None:
            name = message.recipient.removeprefix("functions.")
            arguments = json.dumps(json.loads(content.text), ensure_ascii=False)
            deltas += [ToolStart(f"t{next(number)}", name), ToolInput(arguments), ToolEnd()]
            continue
        kind = ThinkingDelta if message.channel == "analysis" else TextDelta
        gap = "\n\n" if deltas and isinstance(deltas[-1], kind) else ""
        deltas.append(kind(gap + content.text))
    return joined(deltas)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(written=st.lists(messages(), min_size=1, max_size=5))
def test_well_formed_replies_are_read_as_published(
    encoding: harmony.HarmonyEncoding, written: list[str]
) -> None:
    tokens = encoding.encode("<|start|>assistant".join(written), allowed_special="all")
    number = count(1)
    parser = ReplyParser((), True, lambda: f"t{next(number)}", DIALECTS["gpt_oss"])
    deltas: list[Delta] = []
    for token in tokens:
        deltas += parser.feed(bytes(encoding._inner.decode_bytes([token])))
    assert joined(deltas + parser.finish()) == as_published(encoding, tokens)
