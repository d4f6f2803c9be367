"""Random conversations: begun, continued, forked, edited in the middle and repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.sessions import prose

N_KNOWN = 40  # conversations that may be taken up again
N_SYSTEMS = 3
N_SYSTEM_WORDS = 120
BEGUN = 0.1
MADE_UP = 0.5  # share of the conversations whose replies the client invents

Message = dict[str, Any]


@dataclass(slots=True)
class Conversation:
    """``messages`` end with the user's. ``is_echoing``: it has replies of the server's in it, whose
    sampled tokens the server may remember, so that another may read the same text otherwise."""

    system: str
    messages: list[Message]
    makes_up: bool
    is_echoing: bool = False
    reply: str = ""

    @property
    def n_words(self) -> int:
        return sum(len(message["content"].split()) for message in self.messages)

    def body(self, max_tokens: int) -> dict[str, Any]:
        system = {"type": "text", "text": self.system, "cache_control": {"type": "ephemeral"}}
        return {
            "model": "local",
            "max_tokens": max_tokens,
            "temperature": 0,
            "system": [system],
            "messages": self.messages,
        }


@dataclass(slots=True)
class Traffic:
    """What clients ask next. ``n_longest``: words of a conversation, replies included."""

    seed: int
    n_longest: int
    known: list[Conversation] = field(default_factory=list)
    _n_texts: int = 0
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def next(self) -> Conversation:
        """A conversation to send; tell by ``replied`` what came of it."""
        if not self.known or self._rng.random() < BEGUN:
            return self._begun()
        ways = (self._continued, self._forked, self._edited, self._repeated)
        (way,) = self._rng.choices(ways, (5, 2, 1, 2))
        asked = way(self._rng.choice(self.known))
        return asked if asked.n_words <= self.n_longest else self._begun()

    def replied(self, asked: Conversation, reply: str) -> None:
        """``asked`` was answered, or at least begun to be; it may be taken up again."""
        asked.reply = reply
        self.known.append(asked)
        if len(self.known) > N_KNOWN:
            self.known.pop(self._rng.randrange(N_KNOWN))

    def _begun(self) -> Conversation:
        system = prose(self.seed, f"system {self._rng.randrange(N_SYSTEMS)}", N_SYSTEM_WORDS)
        return Conversation(system, [self._user()], self._rng.random() < MADE_UP)

    def _continued(self, old: Conversation) -> Conversation:
        echoes = bool(old.reply.strip()) and not old.makes_up
        reply = {"role": "assistant", "content": old.reply if echoes else self._text(12)}
        messages = [*old.messages, reply, self._user()]
        return Conversation(old.system, messages, old.makes_up, old.is_echoing or echoes)

    def _forked(self, old: Conversation) -> Conversation:
        n = self._rng.randrange(0, len(old.messages), 2)
        messages = [*old.messages[:n], self._user()]
        return Conversation(old.system, messages, old.makes_up, old.is_echoing)

    def _edited(self, old: Conversation) -> Conversation:
        messages = list(old.messages)
        i = self._rng.randrange(0, len(messages), 2)
        words = messages[i]["content"].split()
        words[self._rng.randrange(len(words))] = "Otherwise"
        messages[i] = {"role": "user", "content": " ".join(words)}
        return Conversation(old.system, messages, old.makes_up, old.is_echoing)

    def _repeated(self, old: Conversation) -> Conversation:
        return Conversation(old.system, old.messages, old.makes_up, old.is_echoing)

    def _user(self) -> Message:
        return {"role": "user", "content": self._text(self._rng.choice([5, 20, 60, 200]))}

    def _text(self, n_words: int) -> str:
        self._n_texts += 1
        return prose(self.seed, f"text {self._n_texts}", n_words)
