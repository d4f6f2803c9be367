"""All dialects, and which one a chat template speaks."""

from __future__ import annotations

from ratoon.chat.formats import (
    deepseek,
    gemma,
    glm,
    gpt_oss,
    granite,
    hermes,
    kimi,
    lfm2,
    llama3,
    mistral,
    phi,
    qwen_xml,
)
from ratoon.chat.formats.call import Dialect

DIALECTS: dict[str, Dialect] = {
    module.DIALECT.name: module.DIALECT
    for module in (
        hermes,
        qwen_xml,
        llama3,
        mistral,
        glm,
        deepseek,
        kimi,
        granite,
        phi,
        lfm2,
        gemma,
        gpt_oss,
    )
}

# Texts in a template → its dialect. The first entry whose texts all occur counts.
_SIGNS: tuple[tuple[tuple[str, ...], Dialect], ...] = (
    (("<|start|>", "<|channel|>", "<|message|>"), gpt_oss.DIALECT),
    (("<｜tool▁calls▁begin｜>",), deepseek.DIALECT),
    (("<|tool_calls_section_begin|>",), kimi.DIALECT),
    (("[TOOL_CALLS]",), mistral.DIALECT),
    (("<|tool_call_start|>",), lfm2.DIALECT),
    (("<|tool_list_start|>",), lfm2.DIALECT),
    (("<|im_start|>", "List of tools: ["), lfm2.DIALECT),
    (("<function=", "<parameter="), qwen_xml.DIALECT),
    (("<arg_key>",), glm.DIALECT),
    (("<|start_of_role|>",), granite.DIALECT),
    (("<|tool|>", "<|/tool|>"), phi.DIALECT),
    (("<|tool_call>",), gemma.DIALECT),
    (("<start_of_turn>",), gemma.DIALECT),
    (("<tool_call>",), hermes.DIALECT),
    (("<|python_tag|>",), llama3.DIALECT),
    (("<|start_header_id|>", '"parameters": '), llama3.DIALECT),
)


def detect(template_source: str) -> Dialect:
    """The dialect of a chat template; Hermes where nothing tells."""
    for signs, dialect in _SIGNS:
        if all(sign in template_source for sign in signs):
            return dialect
    return hermes.DIALECT
