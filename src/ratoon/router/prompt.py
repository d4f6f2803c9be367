"""What the model reads to choose a tool: rules, then the tools, then the query.

The tools come last of what all queries share, so that one more tool only adds to it. The answer is
the tool's name and, on the next line, its arguments: one form for every model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ratoon import wire
from ratoon.chat.render import Prompt
from ratoon.chat.vocab import Vocab
from ratoon.errors import InvalidRequest, PromptTooLong
from ratoon.router.catalogue import Catalogue, Tool
from ratoon.router.trie import NameTrie, Path

NONE_WORDS = ("none", "no_tool", "none_of_these", "no_tool_fits")
NAME_END = b"\n"
N_SPARE = 16  # tokens of the window that a name may take

_RULES = """You choose tools. Each <tool> below is the JSON definition of one. Answer a request \
with the name of the one tool that does what is asked, by its main action, and on the next line \
with the tool's arguments as one JSON object. If no tool does what is asked, answer {none}."""


class Renderer(Protocol):
    """Turns messages into tokens. Called from worker threads, several at once."""

    def render(
        self, request: wire.CountTokensRequest, *, hoist: bool = True, thinks: bool = False
    ) -> Prompt: ...


@dataclass(frozen=True, slots=True)
class DomainPrompt:
    """A catalogue in tokens. ``prefix`` is what all of its queries share and nothing else;
    ``none`` is the word for no tool, the last name of the ``trie``; ``digest`` is the
    catalogue's."""

    catalogue: Catalogue
    digest: str
    none: str
    prefix: list[int]
    trie: NameTrie
    is_separable: bool  # whether a query's tokens do not depend on the tools before it


class Prompts:
    """Makes prompts for one model; thread-safe."""

    def __init__(self, renderer: Renderer, vocab: Vocab, n_ctx: int) -> None:
        self._renderer = renderer
        self._vocab = vocab
        self._n_ctx = n_ctx
        self._ends = tuple(
            token
            for token in range(vocab.n_tokens)
            if vocab.is_end(token) or vocab.piece(token).startswith(NAME_END)
        )
        self._stub = Catalogue((_OTHER,))
        self._n_stub = len(self._shared(self._stub, NONE_WORDS[0]))

    def domain(self, catalogue: Catalogue) -> DomainPrompt:
        """Takes time in proportion to the catalogue. Raises PromptTooLong."""
        none = next(word for word in NONE_WORDS if all(t.name != word for t in catalogue.tools))
        prefix = self._shared(catalogue, none)
        if len(prefix) + N_SPARE >= self._n_ctx:
            raise PromptTooLong(len(prefix), self._n_ctx - N_SPARE)
        names = [*(tool.name for tool in catalogue.tools), none]
        whole = self._render(catalogue, none, _PROBE)
        is_separable = prefix + self._suffix(_PROBE) == whole
        trie = NameTrie([self._answer(name) for name in names], self._ends)
        return DomainPrompt(catalogue, catalogue.digest(), none, prefix, trie, is_separable)

    def query(self, domain: DomainPrompt, query: str) -> list[int]:
        """The whole prompt, up to where the answer begins. Raises PromptTooLong, InvalidRequest."""
        if domain.is_separable:
            tokens = domain.prefix + self._suffix(query)
        else:
            tokens = self._render(domain.catalogue, domain.none, query)
        if len(tokens) + N_SPARE >= self._n_ctx:
            raise PromptTooLong(len(tokens), self._n_ctx - N_SPARE)
        return tokens

    def chosen(self, tokens: list[int], name: str) -> list[int]:
        """A query's prompt with the tool's name behind it, where its arguments begin."""
        return [*tokens, *self._answer(name), *self._vocab.tokenize(NAME_END.decode())]

    def _suffix(self, query: str) -> list[int]:
        return self._render(self._stub, NONE_WORDS[0], query)[self._n_stub :]

    def _shared(self, catalogue: Catalogue, none: str) -> list[int]:
        """What a catalogue's prompts share with those of one that has more tools."""
        more = Catalogue((*catalogue.tools, _OTHER), catalogue.system_prompt)
        left, right = (self._render(each, none, _PROBE) for each in (catalogue, more))
        n = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), 0)
        return left[:n]

    def _answer(self, name: str) -> Path:
        """The tokens of an answer's first line."""
        request = _request([_RULES], _PROBE)
        asked = self._renderer.render(request).tokens
        turn = wire.Message(role="assistant", content=name)
        answered = self._renderer.render(
            request.model_copy(update={"messages": [*request.messages, turn]})
        ).tokens
        if len(answered) > len(asked) and answered[: len(asked)] == asked:
            return tuple(answered[len(asked) :])
        return tuple(self._vocab.tokenize(name))

    def _render(self, catalogue: Catalogue, none: str, query: str) -> list[int]:
        rules = _RULES.format(none=none)
        extra = [catalogue.system_prompt] if catalogue.system_prompt.strip() else []
        # all end alike, so that what comes behind the last one has the same tokens
        shown = [f"<tool>{tool.line}</tool>" for tool in catalogue.tools]
        return self._renderer.render(_request([rules, *extra, *shown], query)).tokens


def _request(blocks: Sequence[str], query: str) -> wire.CountTokensRequest:
    if not query.strip():
        raise InvalidRequest("query: must contain non-whitespace text")
    system = [wire.TextBlock(type="text", text=text) for text in blocks]
    message = wire.Message(role="user", content=query)
    return wire.CountTokensRequest(model="", messages=[message], system=system)


_PROBE = "x"
# any tool
_OTHER = Tool("_", "", {}, {})
