"""Templates in the manner of model families, for rendering history beside what was sampled."""

from __future__ import annotations

from pathlib import Path

from tests.unit.chat.fakes import CHATML, CHATML_TOOLS, STRICT, ByteVocab

LLAMA3 = (
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}"
    "{% if message.tool_calls %}{% if message.tool_calls | length != 1 %}"
    "{{ raise_exception('one call at a time') }}{% endif %}"
    "{% set call = message.tool_calls[0].function %}"
    "{{ '{\"name\": \"' + call.name + '\", \"parameters\": ' + call.arguments | tojson + '}' }}"
    "{% else %}{{ message.content | trim }}{% endif %}{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
# Refuses a result that follows no call, and writes history with a blank that no prompt ends in.
MISTRAL = (
    "{{ bos_token }}{% if tools %}{{ '[TOOLS]' + tools | tojson }}{% endif %}"
    "{% set state = namespace(called=false) %}{% for message in messages %}"
    "{% if message.role == 'user' %}{{ '[INST] ' + message.content + '[/INST]' }}"
    "{% elif message.role == 'tool' %}{% if not state.called %}"
    "{{ raise_exception('a result without a call') }}{% endif %}"
    "{{ '[RESULT]' + message.content + '[/RESULT]' }}"
    "{% elif message.tool_calls %}{% set state.called = true %}{{ '[TOOL_CALLS][' }}"
    "{% for call in message.tool_calls %}"
    "{{ (call.function | tojson)[:-1] + ', \"id\": \"' + call.id + '\"}' }}"
    "{{ ', ' if not loop.last }}{% endfor %}{{ ']</s>' }}"
    "{% elif message.role == 'assistant' %}{% set state.called = false %}"
    "{{ ' ' + message.content | trim + '</s>' }}"
    "{% else %}{{ '[SYSTEM]' + message.content + '[/SYSTEM]' }}{% endif %}{% endfor %}"
)
# Replies since the last question show an empty thought; earlier ones show none.
_THINK = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ '<|im_start|>user\n<tool_response>\n' + message.content"
    " + '\n</tool_response><|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' and loop.index0 > ns.last %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{{ message.content.lstrip('\n') }}"
    "{% for call in message.tool_calls or [] %}"
    '{{ \'\n<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_END = "'<|im_start|>assistant\n' }}{% endif %}"
THINK_OPEN = _THINK.removesuffix(_END) + "'<|im_start|>assistant\n<think>\n' }}{% endif %}"
THINK_OFF = (
    _THINK.removesuffix(_END) + "'<|im_start|>assistant\n<think>\n\n</think>\n\n' }}{% endif %}"
)

TEMPLATES = {
    "chatml": CHATML,
    "chatml_tools": CHATML_TOOLS,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "think": _THINK,
    "think_open": THINK_OPEN,
    "think_off": THINK_OFF,
    "think_switch": (Path(__file__).parents[2] / "templates" / "chatml_think.jinja").read_text(),
    "strict": STRICT,
}
CONTROLS = (
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "[INST]",
    "[/INST]",
    "[TOOLS]",
    "[TOOL_CALLS]",
    "[RESULT]",
    "[/RESULT]",
    "[SYSTEM]",
    "[/SYSTEM]",
    "</s>",
)


def vocab() -> ByteVocab:
    return ByteVocab(controls=CONTROLS)
