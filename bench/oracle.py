"""How few prompt tokens a trace needs: a tree of its rendered prompts that forgets nothing.

    python bench/oracle.py TRACE --model GGUF [--template FILE] [--whole] [--json]

A token of a prompt must be computed unless an earlier prompt had the same tokens up to and with
it; the last token always is, for its logits. No cache can do better without the replies, which a
replay does not feed back.

With memory that can't be cut (``--whole``: a sliding window, recurrent states) a prompt can start
only from a state that was saved: at an earlier prompt's boundaries, before its last token, or where
it left what was known before.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gguf import GGUFReader

from ratoon import wire
from ratoon.bench.trace import Recorded, read_trace
from ratoon.chat.normalise import Rules
from ratoon.chat.render import Prompt, Renderer
from ratoon.chat.template import ChatTemplate
from ratoon.engine.llama import load_vocab
from ratoon.errors import RatoonError


@dataclass(slots=True)
class Node:
    """One token after a known prefix."""

    children: dict[int, Node] = field(default_factory=dict)
    is_saved: bool = False


def new_tokens(root: Node, tokens: Iterable[int]) -> int:
    """Insert a prompt; how many of its tokens no earlier prompt had."""
    n_new, node = 0, root
    for token in tokens:
        child = node.children.get(token)
        if child is None:
            child = node.children[token] = Node()
            n_new += 1
        node = child
    return n_new


def tokens_to_compute(root: Node, prompt: Prompt) -> int:
    """Likewise where states can't be cut: how many follow the last state saved on the way."""
    node, n_known, n_saved = root, 0, 0
    passed: list[Node] = []
    for n, token in enumerate(prompt.tokens, 1):
        child = node.children.get(token)
        if child is None:
            child = node.children[token] = Node()
        else:
            n_known = n
        node = child
        passed.append(node)
        if node.is_saved and n < len(prompt.tokens):
            n_saved = n
    for n in {*prompt.boundaries, n_known, len(prompt.tokens) - 1} - {0}:
        passed[n - 1].is_saved = True
    return len(prompt.tokens) - n_saved


def make_renderer(model: Path, template: Path | None) -> Renderer:
    """Render as the server does, with the model's tokenizer and its template or another."""
    vocab = load_vocab(model)
    source = template.read_text(encoding="utf-8") if template else read_template(model)
    bos, eos = (
        "" if token is None else vocab.piece(token).decode("utf-8", "replace")
        for token in (vocab.bos_id, vocab.eos_id)
    )
    return Renderer(ChatTemplate(source, bos, eos), vocab, Rules())


def read_template(model: Path) -> str:
    """The chat template that a GGUF file carries."""
    found = GGUFReader(model).fields.get("tokenizer.chat_template")
    if found is None:
        sys.exit(f"{model} has no chat template; give one with --template")
    return str(found.contents())


def measure(
    requests: Iterable[Recorded], renderer: Renderer, *, is_whole: bool = False
) -> list[dict[str, int | str]]:
    """One row per request, in the trace's order. ``is_whole``: states can't be cut."""
    root = Node()
    rows: list[dict[str, int | str]] = []
    for request in requests:
        asked = wire.CountTokensRequest.model_validate(request.body)
        prompt = renderer.render(asked)
        tokens = prompt.tokens
        n_new = tokens_to_compute(root, prompt) if is_whole else new_tokens(root, tokens)
        rows.append(
            {
                "index": request.index,
                "agent": request.agent.id or "main",
                "n_prompt": len(tokens),
                "n_forwarded": max(1, n_new),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="GGUF with the tokenizer")
    parser.add_argument("--template", type=Path, help="Jinja2 chat template; default: the model's")
    parser.add_argument("--whole", action="store_true", help="states can't be cut")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    try:
        renderer = make_renderer(options.model, options.template)
        rows = measure(read_trace(options.trace), renderer, is_whole=options.whole)
    except RatoonError as error:
        sys.exit(str(error))
    totals = {name: sum(int(row[name]) for row in rows) for name in ("n_prompt", "n_forwarded")}
    if options.json:
        json.dump({"totals": totals, "requests": rows}, sys.stdout, indent=2)
        return
    for row in rows:
        sys.stdout.write("{index:>4} {agent:<16} {n_prompt:>8} {n_forwarded:>8}\n".format(**row))
    sys.stdout.write("total {:<15} {n_prompt:>8} {n_forwarded:>8}\n".format("", **totals))


if __name__ == "__main__":
    main()
