"""Reasoning at the edge: who may switch it on, ``/think``, and the signature on what is shown."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, StrictBool, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ratoon import wire
from ratoon.api.body import read_body
from ratoon.errors import InvalidRequest

Display = Literal["shown", "omitted", "hidden"]

_MAX_BODY_BYTES = 4096


@dataclass(slots=True)
class ThinkSwitch:
    """Whether requests may ask for reasoning. A locked switch is off for the server's life."""

    is_on: bool = True
    is_locked: bool = False

    def __post_init__(self) -> None:
        self.is_on &= not self.is_locked

    def allows(self, thinking: wire.Thinking | None) -> bool:
        """Whether the reply to this request reasons first."""
        return self.is_on and _asks(thinking)

    def refuses(self, thinking: wire.Thinking | None) -> bool:
        """Whether the lock, and only that, keeps this request from reasoning."""
        return self.is_locked and _asks(thinking)

    def turn(self, is_on: bool) -> None:
        """Does nothing to a locked switch."""
        self.is_on = is_on and not self.is_locked


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs reasoning, so that one that comes back is known to be unaltered.

    The key is derived from what is the same after a restart, so old blocks keep verifying.
    """

    key: bytes = b""

    def sign(self, thinking: str) -> str:
        digest = hmac.digest(self.key, thinking.encode("utf-8", "surrogatepass"), hashlib.sha256)
        return base64.b64encode(digest).decode()

    def verifies(self, block: wire.ThinkingBlock) -> bool:
        signature = self.sign(block.thinking)
        return hmac.compare_digest(signature.encode(), block.signature.encode())


def count_echoes(request: wire.CountTokensRequest, signer: Signer) -> tuple[int, int]:
    """How many blocks of reasoning in the request are signed by us, and how many are not. One whose
    text is left out can't be told and is not counted."""
    blocks = [block for message in request.messages for block in _thoughts(message)]
    n_own = sum(map(signer.verifies, blocks))
    return n_own, len(blocks) - n_own


def _thoughts(message: wire.Message) -> list[wire.ThinkingBlock]:
    blocks = () if isinstance(message.content, str) else message.content
    return [block for block in blocks if isinstance(block, wire.ThinkingBlock) and block.thinking]


def display_of(thinking: wire.Thinking | None, thinks: bool) -> Display:
    """What the client sees of the reasoning; where it asked for none, any there is is hidden."""
    if thinking is None or not thinks:
        return "hidden"
    return "omitted" if thinking.display == "omitted" else "shown"


async def get_think(http: Request) -> Response:
    return _state(http.app.state.service.think)


async def set_think(http: Request) -> Response:
    """``{"think": true}`` or ``false``; a locked switch answers that it is locked."""
    body = await read_body(http, _MAX_BODY_BYTES)
    try:
        asked = _Switch.model_validate_json(body)
    except ValidationError:
        raise InvalidRequest('the body must be {"think": true} or {"think": false}') from None
    service = http.app.state.service
    switch: ThinkSwitch = service.think
    switch.turn(asked.think)
    if service.replies is not None:
        service.replies.keep_reasoning(switch.is_on)
    return _state(switch)


class _Switch(BaseModel):
    think: StrictBool


def _state(switch: ThinkSwitch) -> Response:
    return JSONResponse({"think": switch.is_on, "locked": switch.is_locked})


def _asks(thinking: wire.Thinking | None) -> bool:
    return thinking is not None and thinking.type != "disabled"
