"""What a server of the Chat Completions API is asked."""

from __future__ import annotations

import asyncio

import pytest

from ratoon.router.credentials import Access
from ratoon.router.llm import Asked, Prompt
from ratoon.router.openai_llm import OpenAiLlm


@pytest.mark.parametrize(
    ("base_url", "field"),
    [
        (None, "max_completion_tokens"),
        ("https://api.openai.com/v1/chat/completions", "max_completion_tokens"),
        ("http://127.0.0.1:8000/v1", "max_tokens"),
    ],
)
def test_each_server_knows_its_name_of_the_limit(base_url: str | None, field: str) -> None:
    llm = OpenAiLlm(Access("openai", "key", base_url=base_url), timeout_s=1.0)
    body = llm._body(Prompt([Asked("Hi")], max_tokens=7), {})
    asyncio.run(llm.close())
    assert {name: value for name, value in body.items() if name.startswith("max_")} == {field: 7}
