"""``ratoon`` with a model whose replies are known: they come from the scripts.

    python -m tests.client.scripted_server serve ...    as `ratoon serve ...`

The command line, the engine and the cache are those that ship, and the model computes every token;
only which token comes next is decided here. Requests are recorded in the file that the environment
variable RECORDS names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import ratoon.build
from ratoon.build import Server, build
from ratoon.chat.vocab import Vocab
from ratoon.cli import main
from ratoon.config import Settings
from ratoon.engine.request import Request
from tests.client.recorder import Recorder
from tests.client.scripts import CLOSING, SCRIPTS, SUMMARY, WORK

_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
_RESULT = re.compile(r"<tool_response>.*?</tool_response>", re.DOTALL)
_ELEMENTS = ("<analysis>", "<summary>")  # what a compaction asks for
_MARK = re.compile(r"\[\[S:(\w+)\]\]")


class Prompter:
    """Tells the engine what the model says next: the agent's next reply in its script.

    The last ``[[S:name]]`` in what the user said names the script; the assistant's turns since then
    are the replies already given.
    """

    def __init__(self, vocab: Vocab, scripts: Mapping[str, Sequence[str]]) -> None:
        self._vocab = vocab
        self._scripts = scripts

    def __call__(self, request: Request) -> list[int]:
        vocab = self._vocab
        assert vocab.eos_id is not None
        prompt = b"".join(map(vocab.piece, request.prompt)).decode("utf-8", "replace")
        return [*vocab.tokenize(self.reply(prompt).replace(WORK, os.getcwd())), vocab.eos_id]

    def reply(self, prompt: str) -> str:
        name, n_said, said = "", 0, ""
        for role, text in _TURN.findall(prompt)[:-1]:  # the last is the reply's own opening
            said = _RESULT.sub("", text) if role == "user" else ""
            marks = _MARK.findall(said)
            if marks:
                name, n_said = marks[-1], 0
            n_said += role == "assistant"
        if all(element in said for element in _ELEMENTS):
            return SUMMARY
        replies = self._scripts.get(name, ())
        return replies[n_said] if n_said < len(replies) else CLOSING


def scripted(records: Path) -> Callable[..., Server]:
    """``ratoon.build.build``, with the prompter and the recorder added."""

    def build_scripted(
        settings: Settings, progress: Callable[[float], None] | None = None
    ) -> Server:
        server = build(settings, progress)
        recorder = Recorder(server.app, records)
        prompter = Prompter(server.engine.model.vocab, SCRIPTS)

        def forced_tokens(request: Request) -> list[int]:
            recorder.watch(request)
            return prompter(request)

        server.engine.forced_tokens = forced_tokens
        return replace(server, app=recorder)

    return build_scripted


if __name__ == "__main__":
    with mock.patch.object(ratoon.build, "build", scripted(Path(os.environ["RECORDS"]))):
        main()
