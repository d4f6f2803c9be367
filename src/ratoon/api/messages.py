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

from ratoon import wire
from ratoon.api.body import parse_body, read_body
from ratoon.api.diagnostics import fingerprint
from ratoon.api.forms import ConversationKey, conversation_key, has_reply
from ratoon.api.ids import new_id
from ratoon.api.replies import RecordedStream
from ratoon.api.reply import Mailbox, Meter, reply_events
from ratoon.api.search import Round, search_tools, with_searches
from ratoon.api.service import Service
from ratoon.api.sse import EventStream
from ratoon.api.stream import MessageFold, ReplyHead, ReplyStream, WireEvent
from ratoon.api.think import count_echoes, display_of
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
    echoes = await to_thread.run_sync(count_echoes, asked, service.signer)
    service.metrics.count_thoughts(*echoes)
    head = await _head(service, asked, prompt)
    first = await _round(http, head, asked, prompt, meter)
    batches = first.batches
    if head.searches:
        batches = with_searches(asked, head, first, partial(_next_round, http, head))
    if asked.stream:
        start = await anext(batches)
        return EventStream(start, batches, service, http.state.request_id)
    return JSONResponse(await _whole(batches))


async def count_tokens(http: HttpRequest) -> Response:
    service: Service = http.app.state.service
    body = await read_body(http, service.settings.max_body_bytes)
    asked = await to_thread.run_sync(parse_body, wire.CountTokensRequest, body)
    prompt = await _render(service, asked, http.headers, settles=False)
    counts: dict[str, object] = {"input_tokens": len(prompt.tokens)}
    if asked.context_management is not None:
        if prompt.edits:
            whole = asked.model_copy(update={"context_management": None})
            prompt = await _render(service, whole, http.headers, settles=False)
        counts["context_management"] = {"original_input_tokens": len(prompt.tokens)}
    return JSONResponse(counts)


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
    if service.guides is None or not asked.max_tokens:
        return None
    return service.guides.guide(asked, prompt)


async def _render_in_place(render: Callable[..., Prompt]) -> Prompt:
    return await to_thread.run_sync(partial(render, hoist=False))


def _prefers_hoisted(service: Service, hoisted: Prompt, in_place: Prompt) -> bool:
    """Whichever has more of its tokens in the cache; hoisted on a tie."""
    match_length = service.engine.match_length
    return match_length(hoisted.tokens) >= match_length(in_place.tokens)


async def _head(service: Service, asked: wire.MessagesRequest, prompt: Prompt) -> ReplyHead:
    """What the message says of its prompt, which is remembered under the message's id."""
    now = await to_thread.run_sync(fingerprint, asked.model, prompt)
    previous = asked.diagnostics.previous_message_id if asked.diagnostics else None
    prints = service.fingerprints
    diagnostics = prints.diagnose(previous, now, prompt.tokens) if previous else None
    message_id = new_id("msg")
    prints.remember(message_id, now)
    return ReplyHead(
        message_id=message_id,
        model=asked.model,
        has_marks=has_cache_marks(asked),
        display=display_of(asked.thinking, prompt.thinks),
        sign=service.signer.sign,
        searches=search_tools(asked),
        edits=prompt.edits if asked.context_management else None,
        diagnostics=diagnostics,
    )


async def _next_round(
    http: HttpRequest, head: ReplyHead, asked: wire.MessagesRequest, number: int
) -> Round:
    """The reply goes on, its beginning being part of the prompt now."""
    service: Service = http.app.state.service
    prompt = await _render(service, asked, http.headers)
    meter = Meter(service.metrics, service.clock)
    return await _round(http, head, asked, prompt, meter, number)


async def _round(
    http: HttpRequest,
    head: ReplyHead,
    asked: wire.MessagesRequest,
    prompt: Prompt,
    meter: Meter,
    number: int = 0,
) -> Round:
    """A request to the engine, not yet sent, and the stream that will read its reply."""
    service: Service = http.app.state.service
    n_free = service.engine.n_ctx - len(prompt.tokens)
    if n_free < 1:
        raise PromptTooLong(len(prompt.tokens), service.engine.n_ctx - 1)
    mailbox = Mailbox()
    request = Request(
        id=f"{head.message_id}.{number}" if number else head.message_id,
        prompt=prompt.tokens,
        max_tokens=min(asked.max_tokens, n_free),
        emit=mailbox.put,
        sampling=_sampling(asked, service.settings.sampling),
        boundaries=prompt.boundaries,
        guide=await to_thread.run_sync(_guide, service, asked, prompt),
        label="locked" if service.think.refuses(asked.thinking) else "req",
    )
    parser = ReplyParser(
        asked.stop_sequences or (),
        prompt.parses_tools,
        partial(new_id, "toolu"),
        prompt.dialect,
        prompt.schemas,
        prompt.reasoning,
    )
    is_clamped = asked.max_tokens > n_free
    head = replace(head, boundaries=prompt.boundaries, is_clamped=is_clamped)
    stream = ReplyStream(head, parser)
    recorded = (
        stream if service.replies is None else RecordedStream(stream, service.replies, prompt)
    )
    batches = reply_events(service, request, mailbox, recorded, meter, http.receive)
    return Round(batches, recorded, prompt.searchable)


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
