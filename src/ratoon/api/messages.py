"""``POST /v1/messages`` and ``count_tokens``: one request, top to bottom."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive

from ratoon import wire
from ratoon.api.body import parse_body, read_body
from ratoon.api.forms import ConversationKey, conversation_key, has_reply
from ratoon.api.ids import new_id
from ratoon.api.replies import RecordedStream
from ratoon.api.reply import Mailbox, Meter, reply_events
from ratoon.api.service import Service
from ratoon.api.sse import EventStream
from ratoon.api.stream import MessageFold, ReplyHead, ReplyStream, WireEvent
from ratoon.api.think import display_of
from ratoon.api.usage import has_cache_marks
from ratoon.chat.parser import ReplyParser
from ratoon.chat.render import Prompt
from ratoon.engine.request import Guide, Request, SamplingParams
from ratoon.engine.sampler import MIN_TEMPERATURE
from ratoon.errors import PromptTooLong


async def create_message(http: HttpRequest) -> Response:
    service: Service = http.app.state.service
    meter = Meter(service.metrics, service.clock)
    body = await read_body(http, service.settings.max_body_bytes)
    asked = await to_thread.run_sync(parse_body, wire.MessagesRequest, body)
    prompt = await _render(service, asked, http.headers)
    service.metrics.count_normalisations(prompt.fired)
    service.metrics.count_replays(prompt.replays)
    guide = await to_thread.run_sync(_guide, service, asked, prompt)
    batches = _start(service, asked, prompt, guide, meter, http.receive)
    if asked.stream:
        first = await anext(batches)
        return EventStream(first, batches, service, http.state.request_id)
    return JSONResponse(await _whole(batches))


async def count_tokens(http: HttpRequest) -> Response:
    service: Service = http.app.state.service
    body = await read_body(http, service.settings.max_body_bytes)
    asked = await to_thread.run_sync(parse_body, wire.CountTokensRequest, body)
    prompt = await _render(service, asked, http.headers, settles=False)
    return JSONResponse({"input_tokens": len(prompt.tokens)})


async def _render(
    service: Service, asked: wire.CountTokensRequest, headers: Headers, *, settles: bool = True
) -> Prompt:
    """The prompt, in the form its conversation started with; ``settles`` remembers that form."""
    thinks = service.think.allows(asked.thinking)
    render = partial(service.renderer.render, asked, thinks=thinks)
    hoisted, key = await to_thread.run_sync(_look, render, asked, headers)
    form = None if key is None else service.forms.recall(key)
    in_place = None
    if hoisted.has_late_run and form is None and (key is None or has_reply(asked)):
        in_place = await _render_in_place(render)
        form = await to_thread.run_sync(_prefers_hoisted, service, hoisted, in_place)
    elif form is None:
        form = hoisted.has_late_run
    if key is not None and settles:
        form = service.forms.settle(key, form)
    if form or not hoisted.has_late_run:
        return hoisted
    return in_place or await _render_in_place(render)


def _look(
    render: Callable[[], Prompt], asked: wire.CountTokensRequest, headers: Headers
) -> tuple[Prompt, ConversationKey | None]:
    """The work on a body that may be large, for a worker thread."""
    return render(), conversation_key(headers, asked)


def _guide(service: Service, asked: wire.MessagesRequest, prompt: Prompt) -> Guide | None:
    return service.guides.guide(asked, prompt) if service.guides else None


async def _render_in_place(render: Callable[..., Prompt]) -> Prompt:
    return await to_thread.run_sync(partial(render, hoist=False))


def _prefers_hoisted(service: Service, hoisted: Prompt, in_place: Prompt) -> bool:
    """Whichever has more of its tokens in the cache; hoisted on a tie."""
    match_length = service.engine.match_length
    return match_length(hoisted.tokens) >= match_length(in_place.tokens)


def _start(
    service: Service,
    asked: wire.MessagesRequest,
    prompt: Prompt,
    guide: Guide | None,
    meter: Meter,
    receive: Receive,
) -> AsyncGenerator[list[WireEvent]]:
    n_free = service.engine.n_ctx - len(prompt.tokens)
    if n_free < 1:
        raise PromptTooLong(len(prompt.tokens), service.engine.n_ctx - 1)
    message_id = new_id("msg")
    mailbox = Mailbox()
    request = Request(
        id=message_id,
        prompt=prompt.tokens,
        max_tokens=min(asked.max_tokens, n_free),
        emit=mailbox.put,
        sampling=_sampling(asked, service.settings.sampling),
        boundaries=prompt.boundaries,
        guide=guide,
        label="locked" if service.think.refuses(asked.thinking) else "req",
    )
    head = ReplyHead(
        message_id=message_id,
        model=asked.model,
        boundaries=prompt.boundaries,
        has_marks=has_cache_marks(asked),
        is_clamped=asked.max_tokens > n_free,
        display=display_of(asked.thinking, prompt.thinks),
        sign=service.signer.sign,
    )
    parser = ReplyParser(
        asked.stop_sequences or (),
        prompt.parses_tools,
        partial(new_id, "toolu"),
        prompt.dialect,
        prompt.schemas,
        prompt.reasoning,
    )
    stream = ReplyStream(head, parser)
    if service.replies is None:
        return reply_events(service, request, mailbox, stream, meter, receive)
    recorded = RecordedStream(stream, service.replies, prompt)
    return reply_events(service, request, mailbox, recorded, meter, receive)


def _sampling(asked: wire.MessagesRequest, defaults: SamplingParams) -> SamplingParams:
    """The request's own values; the server's where it gives none."""
    temperature = defaults.temperature if asked.temperature is None else asked.temperature
    return replace(
        defaults,
        temperature=temperature if temperature > MIN_TEMPERATURE else 0.0,
        top_p=defaults.top_p if asked.top_p is None else asked.top_p,
        top_k=defaults.top_k if asked.top_k is None else asked.top_k,
    )


async def _whole(batches: AsyncGenerator[list[WireEvent]]) -> dict[str, object]:
    fold = MessageFold()
    async with aclosing(batches):
        async for batch in batches:
            for event in batch:
                fold.feed(event)
    return fold.message
