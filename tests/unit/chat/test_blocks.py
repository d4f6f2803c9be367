"""Every kind of block: rendered, or refused by its place."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from ratoon.errors import InvalidRequest
from tests.unit.chat.fakes import (
    CHATML,
    CHATML_TOOLS,
    renderer,
    request,
    shown,
    text,
    tool_result,
    tool_use,
)

IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x"}}


def document(**source: Any) -> dict[str, Any]:
    return {"type": "document", "source": source}


PDF = document(type="base64", media_type="application/pdf", data="AAAA")


def render(*messages: tuple[str, Any], source: str = CHATML) -> str:
    return shown(renderer(source).render(request(*messages)))


@pytest.mark.parametrize(
    ("block", "told"),
    [
        (document(type="text", media_type="text/plain", data="body"), "body"),
        (document(type="content", content="body"), "body"),
        (document(type="content", content=[text("a"), text("b")]), "a\n\nb"),
        (document(type="text", data="d") | {"title": "T", "context": "C"}, "T\n\nC\n\nd"),
        (
            {"type": "search_result", "source": "s", "title": "t", "content": [text("a")]},
            "t\ns\n\na",
        ),
        ({"type": "compaction", "content": "what was said"}, "what was said"),
    ],
)
def test_blocks_that_are_text(block: dict[str, Any], told: str) -> None:
    assert f"user\n{told}<|im_end|>" in render(("user", [block]))
    assert f"user\nq\n\n{told}<|im_end|>" in render(("user", [text("q"), block]))
    result = [tool_result("t", [block])] if block["type"] != "compaction" else []
    if result:
        call = ("assistant", [tool_use("t", "n")])
        assert told in render(("user", "x"), call, ("user", result))


def test_what_a_result_shows_but_the_model_cannot_see() -> None:
    """A client that read a picture must be able to go on."""
    call = ("assistant", [tool_use("t", "read")])
    for block, note in ((IMAGE, "[An image"), (PDF, "[A document")):
        assert note in render(("user", "x"), call, ("user", [tool_result("t", [block])]))


@pytest.mark.parametrize(
    ("messages", "match"),
    [
        ([("user", [text("a"), IMAGE])], r"messages\.0\.content\.1: image"),
        ([("user", [PDF])], r"messages\.0\.content\.0\.source: documents of type 'base64'"),
        ([("user", [document(type="url", url="x")])], r"content\.0\.source: documents of type"),
        ([("user", [document(type="file", file_id="x")])], r"content\.0\.source: documents of"),
        ([("user", [tool_use("t", "n")])], r"messages\.0\.content\.0: tool_use blocks"),
        ([("user", "x"), ("assistant", [tool_result("t", "x")])], r"1\.content\.0: tool_result"),
        ([("user", "x"), ("assistant", [IMAGE])], r"messages\.1\.content\.0: image"),
        ([("user", "x"), ("system", [tool_use("t", "n")])], r"messages\.1\.content\.0: tool_use"),
        (
            [("user", "x"), ("assistant", "y"), ("user", [tool_result("t", "r")])],
            r"messages\.2\.content\.0: unexpected `tool_use_id` found in `tool_result` blocks: t",
        ),
    ],
)
def test_blocks_that_are_refused(messages: list[tuple[str, Any]], match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        render(*messages)


@pytest.mark.parametrize("kind", ["container_upload", "hologram"])
def test_kinds_that_nothing_can_stand_for(kind: str) -> None:
    with pytest.raises(ValidationError, match=f"Input tag '{kind}'"):
        request(("user", [{"type": kind}]))


def test_results_may_come_in_any_order_and_late() -> None:
    calls = ("assistant", [tool_use("a", "n"), tool_use("b", "n")])
    early, late = ("user", [tool_result("b", "two")]), ("user", [tool_result("a", "one")])
    prompt = render(("user", "x"), calls, early, ("assistant", "so"), late)
    order = [prompt.index(part) for part in ("two", "so", "one")]
    assert order == sorted(order)


@pytest.mark.parametrize("source", [CHATML, CHATML_TOOLS])
def test_what_other_servers_ran_is_told_as_text(source: str) -> None:
    """A session that began elsewhere goes on here."""
    hit = {"type": "web_search_result", "title": "Ratoons", "url": "http://r", "page_age": None}
    blocks = [
        text("Let me look."),
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "ratoon"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s",
            "content": [{**hit, "encrypted_content": "SECRET"}],
        },
        {"type": "mcp_tool_use", "id": "m", "name": "ask", "input": {}, "server_name": "srv"},
        {"type": "mcp_tool_result", "tool_use_id": "m", "content": [text("yes")]},
        {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}},
        text("Done."),
    ]
    prompt = render(("user", "x"), ("assistant", blocks), ("user", "y"), source=source)
    order = [prompt.index(part) for part in ("Let me", '"ratoon"', "Ratoons", "yes", "Done.")]
    assert order == sorted(order)
    assert "SECRET" not in prompt
    assert "fallback" not in prompt


def test_base64_of_other_servers_is_left_out() -> None:
    page = {"type": "web_fetch_result", "url": "u", "content": PDF}
    blocks = [
        {"type": "server_tool_use", "id": "s", "name": "web_fetch", "input": {"url": "u"}},
        {"type": "web_fetch_tool_result", "tool_use_id": "s", "content": page},
    ]
    prompt = render(("user", "x"), ("assistant", blocks), ("user", "y"))
    assert "application/pdf" in prompt
    assert "AAAA" not in prompt


def test_redacted_thinking_is_not_told() -> None:
    blocks = [{"type": "redacted_thinking", "data": "SECRET"}, text("a")]
    prompt = render(("user", "x"), ("assistant", blocks), ("user", "y"))
    assert "SECRET" not in prompt
    only = render(("user", "x"), ("assistant", blocks[:1]), ("user", "y"))
    assert only.count("assistant") == 1


def test_roles_of_other_clients_are_input() -> None:
    assert render(("ctx", "a"), ("msg", "b")) == render(("user", "a"), ("user", "b"))


def test_a_system_text_for_one_turn() -> None:
    note = {"role": "system", "content": [text("NOTE")], "clear_at": "next_user_message"}

    def told(*more: dict[str, Any]) -> str:
        history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
        asked = [*history, {"role": "user", "content": "z"}, note, *more]
        body = request(("user", "x")).model_dump() | {"messages": asked}
        return shown(renderer(CHATML).render(type(request(("user", "x"))).model_validate(body)))

    reply = {"role": "assistant", "content": "w"}
    assert "NOTE" in told()
    assert "NOTE" in told(reply)
    assert "NOTE" not in told(reply, {"role": "user", "content": "v"})
