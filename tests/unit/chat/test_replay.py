from __future__ import annotations

import json
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratoon.chat.normalise import Rules
from ratoon.chat.render import Prompt, Renderer
from ratoon.chat.tokens import Markup, PromptTokenizer, Splices
from ratoon.reuse.replies import (
    Reply,
    ReplyMemory,
    SentBlock,
    SentCall,
    Text,
    Thought,
    path_digest,
)
from tests.unit.chat.dialogues import TEMPLATES, vocab
from tests.unit.chat.fakes import (
    CHATML,
    CHATML_TOOLS,
    STRICT,
    request,
    template,
    text,
    tool,
    tool_result,
    tool_use,
)

EPHEMERAL = {"type": "ephemeral"}
# Templates whose header in history is the one they prompt with, and that change no content.
PLAIN = [CHATML, CHATML_TOOLS, TEMPLATES["llama3"]]
Turns = list[tuple[str, Any]]


class Session:
    """A conversation whose replies are remembered as they come."""

    def __init__(self, source: str, *turns: tuple[str, Any], **fields: Any) -> None:
        self.memory = ReplyMemory(1 << 20)
        self.with_memory = Renderer(template(source), vocab(), Rules(), memory=self.memory)
        self.without = Renderer(template(source), vocab(), Rules())
        self.turns: Turns = list(turns)
        self.fields = fields
        self.thinks = False

    def prompt(self, *more: tuple[str, Any]) -> Prompt:
        self.turns += more
        return self._rendered(self.with_memory)

    def plain_prompt(self) -> Prompt:
        return self._rendered(self.without)

    def _rendered(self, renderer: Renderer) -> Prompt:
        return renderer.render(request(*self.turns, **self.fields), thinks=self.thinks)

    def reply(self, tokens: list[int], *blocks: SentBlock) -> list[int]:
        """Remember a reply to the prompt as it is now; gives the tokens up to its end."""
        prompt = self.prompt()
        assert prompt.origin is not None
        whole = prompt.tokens + tokens
        self.memory.remember(Reply(prompt.origin, array("i", tokens), blocks, path_digest(whole)))
        return whole


def sampled(body: str) -> list[int]:
    """Tokens that no tokenizer gives for this text: a byte each, markup too."""
    return list(body.encode())


def call_text(**arguments: Any) -> str:
    body = json.dumps(arguments, indent=1)
    return f'<tool_call>\n{{ "name":"read" , "arguments":{body} }}\n</tool_call>'


def begins(prompt: Prompt, tokens: list[int]) -> bool:
    return prompt.tokens[: len(tokens)] == tokens


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_text_is_put_back(name: str) -> None:
    session = Session(TEMPLATES[name], ("user", "Think."), system="Be brief.")
    whole = session.reply(sampled("<think>hm</think>\n\nYes."), Text("Yes."))
    prompt = session.prompt(("assistant", "Yes."), ("user", "Sure?"))
    assert begins(prompt, whole)
    assert prompt.fired == {"replay": 1}
    assert prompt.replays == {"replayed": 1}
    rest = vocab().text(prompt.tokens[len(whole) :])
    assert "assistant" not in rest.partition("Sure?")[0]
    assert rest.count("Sure?") == 1


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_call_is_put_back(name: str) -> None:
    session = Session(TEMPLATES[name], ("user", "Read."), tools=[tool("read")])
    n_calls = 1 if name == "llama3" else 2
    ids = [f"toolu_{n}" for n in range(n_calls)]
    body = "I look. " + call_text(path="a.py")
    calls = [SentCall(id, "read", '{"path": "a.py"}') for id in ids]
    whole = session.reply(sampled(body), Text("I look."), *calls)
    echo = [text("I look."), *(tool_use(id, "read", path="a.py") for id in ids)]
    results = [tool_result(id, "import os") for id in reversed(ids)]
    prompt = session.prompt(("assistant", echo), ("user", results))
    assert prompt.replays == {"replayed": 1}
    assert begins(prompt, whole)
    rest = vocab().text(prompt.tokens[len(whole) :])
    assert rest.count("import os") == n_calls
    assert "a.py" not in rest
    again = session.reply(sampled("Done"), Text("Done"))
    assert begins(session.prompt(("assistant", "Done"), ("user", "Go on.")), again)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_rest_is_what_it_was_without_memory(name: str) -> None:
    session = Session(TEMPLATES[name], ("user", "Read."), tools=[tool("read")])
    whole = session.reply(sampled(call_text(path="a")), SentCall("t1", "read", '{"path": "a"}'))
    echo = [tool_use("t1", "read", path="a")]
    prompt = session.prompt(("assistant", echo), ("user", [tool_result("t1", "<out>")]))
    plain = session.plain_prompt().tokens
    rest = prompt.tokens[len(whole) :]
    assert "<out>" in vocab().text(rest)
    assert plain[-len(rest) :] == rest


@pytest.mark.parametrize("source", PLAIN)
def test_a_reply_in_the_templates_own_words_changes_nothing(source: str) -> None:
    session = Session(
        source, ("user", "Hi"), system=[text("s", cache_control=EPHEMERAL)], tools=[tool("read")]
    )
    session.reply(sampled("Hello."), Text("Hello."))
    session.turns += [("assistant", "Hello."), ("user", "Now?")]
    session.reply(sampled("Now."), Text("Now."))
    marked = [text("Now.", cache_control=EPHEMERAL)]
    session.turns += [("assistant", marked), ("user", [text("Bye", cache_control=EPHEMERAL)])]
    prompt, plain = session.prompt(), session.plain_prompt()
    assert prompt.replays == {"replayed": 2}
    assert prompt.tokens == plain.tokens
    assert prompt.boundaries == plain.boundaries
    assert prompt.text_len == plain.text_len - len("Hello.Now.")


@pytest.mark.parametrize("name", TEMPLATES)
def test_cuts_behind_a_reply(name: str) -> None:
    session = Session(TEMPLATES[name], ("user", "one"))
    whole = session.reply(sampled("<think>x</think>two"), Text("two"))
    marked = [text("two", cache_control=EPHEMERAL)]
    prompt = session.prompt(("assistant", marked), ("user", "three"))
    (cut,) = [n for n in prompt.boundaries if n > len(whole) - 1]
    assert "two" not in vocab().text(prompt.tokens[cut:])
    assert vocab().text(prompt.tokens[len(whole) : cut]) in ("<|im_end|>\n", "<|eot_id|>", "</s>")


@pytest.mark.parametrize("name", TEMPLATES)
def test_reasoning_is_switched_between_replies(name: str) -> None:
    """Each header is the one that its reply was sampled after."""
    session = Session(TEMPLATES[name], ("user", "1"))
    for n, thinks in enumerate((True, False, True)):
        session.thinks = thinks
        whole = session.reply(sampled(f"</think>a{n}"), Text(f"a{n}"))
        session.turns += [("assistant", f"a{n}"), ("user", "more")]
        for session.thinks in (True, False):
            prompt = session.prompt()
            assert prompt.replays == {"replayed": n + 1}
            assert begins(prompt, whole)


def test_reasoning_comes_back_until_the_server_allows_none() -> None:
    session = Session(TEMPLATES["think_switch"], ("user", "1"))
    session.thinks = True
    whole = session.reply(sampled("hm</think>a"), Thought("hm", "s"), Text("a"))
    session.turns += [("assistant", "a"), ("user", "2")]
    for session.thinks in (True, False):
        assert begins(session.prompt(), whole)
    session.memory.keep_reasoning(False)
    assert session.prompt().replays == {"unknown": 1}
    assert session.prompt().tokens == session.plain_prompt().tokens


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_mode_of_reasoning_changes_behind_an_edited_reply(name: str) -> None:
    """What stands before the edited reply looks otherwise then; what follows it is put back."""
    session = Session(TEMPLATES[name], ("user", "1"))
    session.turns += [("assistant", "edited"), ("user", "2")]
    session.reply(sampled("b"), Text("b"))
    session.turns += [("assistant", "b"), ("user", "3")]
    session.thinks = True
    assert session.prompt().replays == {"unknown": 1, "replayed": 1}


def test_an_edit_is_rendered_as_it_came() -> None:
    session = Session(CHATML_TOOLS, ("user", "Read."), tools=[tool("read")])
    session.reply(sampled(call_text(path="a")), SentCall("t1", "read", '{"path": "a"}'))
    prompt = session.prompt(
        ("assistant", [tool_use("t1", "read", path="b")]), ("user", [tool_result("t1", "r")])
    )
    assert prompt.replays == {"different": 1}
    assert prompt.fired == {}
    assert prompt.tokens == session.plain_prompt().tokens


def test_a_reply_is_put_back_only_where_it_was_sampled() -> None:
    session = Session(CHATML, ("user", "Hi"))
    session.reply(sampled("Hello"), Text("Hello"))
    session.turns = [("user", "Hi!"), ("assistant", "Hello"), ("user", "Bye")]
    assert session.prompt().replays == {"elsewhere": 1}
    session.turns[1] = ("assistant", "Hello?")
    assert session.prompt().replays == {"unknown": 1}
    assert session.prompt().tokens == session.plain_prompt().tokens


def test_of_equal_texts_each_has_its_own_tokens() -> None:
    session = Session(CHATML, ("user", "Hi"))
    first = session.reply(sampled("<think>a</think>Yes"), Text("Yes"))
    session.turns += [("assistant", "Yes"), ("user", "Hi")]
    second = session.reply(sampled("<think>b</think>Yes"), Text("Yes"))
    prompt = session.prompt(("assistant", "Yes"), ("user", "Hi"))
    assert prompt.replays == {"replayed": 2}
    assert begins(prompt, second)
    assert begins(prompt, first)


def test_the_form_of_the_prompt_does_not_matter() -> None:
    """What is no prompt text may change: marks, ids, the form of content, billing lines."""
    header = "x-anthropic-billing-header: cc_version=1; cc_entrypoint=cli;"
    session = Session(CHATML_TOOLS, ("user", "Hi"), system=[text(header), text("s")])
    whole = session.reply(sampled("Yes "), Text("Yes "))
    session.turns = [("user", [text("Hi", cache_control=EPHEMERAL), text("")])]
    session.fields["system"] = "s"
    prompt = session.prompt(("assistant", [text("Yes "), text("")]), ("user", "Bye"))
    assert begins(prompt, whole)


def test_noncharacters_of_the_client_do_not_hide_a_reply() -> None:
    session = Session(CHATML, ("user", "Say <|im_end|>"))
    whole = session.reply(sampled("No."), Text("No."))
    prompt = session.prompt(("assistant", "No."), ("user", "a\ufdd0b\ufdd2<|im_end|>"))
    assert begins(prompt, whole)
    assert vocab().text(prompt.tokens).count("a\ufdd0b\ufdd2<|im_end|>") == 1


def test_a_final_reply_is_continued_as_the_client_wrote_it() -> None:
    session = Session(CHATML, ("user", "Hi"))
    session.reply(sampled("<think></think>Once"), Text("Once"))
    prompt = session.prompt(("assistant", "Once"))
    assert prompt.tokens == session.plain_prompt().tokens
    assert prompt.origin is None


def test_without_memory_nothing_is_looked_for() -> None:
    session = Session(CHATML, ("user", "Hi"), ("assistant", "Yes"), ("user", "Bye"))
    prompt = session.plain_prompt()
    assert prompt.origin is None
    assert prompt.replays == {}


def test_a_template_that_hides_replies_gets_the_clients_words() -> None:
    """It shows only the last two messages, so there is no place for the first reply."""
    source = CHATML.replace("in messages", "in messages[-2:]")
    session = Session(source, ("user", "a"))
    session.reply(sampled("b"), Text("b"))
    prompt = session.prompt(("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e"))
    assert prompt.replays == {"refused": 1, "unknown": 1}
    assert prompt.fired == {}
    assert prompt.tokens == session.plain_prompt().tokens


def test_a_template_with_no_place_for_calls_is_known_beforehand() -> None:
    """It takes results only behind a call, and shows calls where no stub can stand."""
    strict = TEMPLATES["mistral"].replace("' ' + message.content", "'>' + message.content")
    strict = strict.replace("{{ ']</s>' }}", "{{ ']<|im_end|>' }}")
    session = Session(strict, ("user", "Read."), tools=[tool("read")])
    session.reply(sampled(call_text(path="a")), SentCall("t1", "read", '{"path": "a"}'))
    prompt = session.prompt(
        ("assistant", [tool_use("t1", "read", path="a")]), ("user", [tool_result("t1", "r")])
    )
    assert prompt.replays == {"refused": 1}
    assert prompt.tokens == session.plain_prompt().tokens


def test_a_template_that_moves_its_tools_to_the_last_question() -> None:
    shown = "{% if tools %}{{ '[TOOLS]' + tools | tojson }}{% endif %}"
    is_last = "not messages[loop.index0 + 1:] | selectattr('role', 'eq', 'user') | list"
    source = TEMPLATES["mistral"].replace(shown, "")
    source = source.replace(
        "{{ '[INST] '",
        "{% if tools and " + is_last + " %}{{ '[TOOLS]' + tools | tojson }}{% endif %}{{ '[INST] '",
    )
    session = Session(source, ("user", "Read."), tools=[tool("read")])
    call = SentCall("t1", "read", '{"path": "a"}')
    whole = session.reply(sampled(call_text(path="a")), call)
    session.turns += [("assistant", [tool_use("t1", "read", path="a")])]
    assert begins(session.prompt(("user", [tool_result("t1", "r")])), whole)
    session.reply(sampled("Done"), Text("Done"))
    prompt = session.prompt(("assistant", "Done"), ("user", "Thanks."))
    assert prompt.replays == {"replayed": 2}
    assert vocab().text(prompt.tokens).startswith("<s>[INST] Read.[/INST]<tool_call>")


def test_turns_that_a_template_joins() -> None:
    session = Session(STRICT, ("user", "a"))
    whole = session.reply(sampled("b"), Text("b"))
    prompt = session.prompt(("assistant", "b"), ("assistant", "c"), ("user", "d"))
    assert begins(prompt, whole)
    assert "b\n\nc<|im_end|>" in vocab().text(prompt.tokens)


def test_no_token_reaches_across_a_splice() -> None:
    markup = Markup(vocab(), CHATML)
    tokenizer = PromptTokenizer(vocab(), markup)
    splices = Splices("\ufdd2", [[1, 2], []])
    found = tokenizer.tokenize(
        "<think\ufdd2>\n\ufdd2\n", "\ufdd0", [0, 6, 7, 8, 9, 10, 11], splices
    )
    assert found.tokens == [*b"<think", 1, 2, *b">\n", *b"\n"]
    assert found.offsets == (0, 6, 8, 9, 10, 10, 11)


names = st.sampled_from(sorted(TEMPLATES))
bodies = st.text("ab \n<>|é", max_size=8).map(lambda body: f"x{body}x")
noises = st.binary(max_size=6).map(list) | st.lists(st.integers(0, 265), max_size=4)
notes = st.sampled_from([None, "Mind the time."])
steps = st.lists(st.tuples(st.booleans(), bodies, noises, notes, st.booleans()), max_size=5)


@settings(deadline=None, max_examples=200)
@given(names, steps)
def test_every_prompt_extends_the_one_before_and_its_reply(
    name: str, planned: list[tuple[bool, str, list[int], str | None, bool]]
) -> None:
    session = Session(TEMPLATES[name], ("user", "start"), system="s", tools=[tool("read")])
    known: list[int] = []
    for n, (is_call, body, tokens, note, thinks) in enumerate(planned):
        session.thinks = thinks
        block = SentCall(f"t{n}", "read", json.dumps({"path": body})) if is_call else Text(body)
        whole = session.reply(tokens, block)
        assert whole[: len(known)] == known
        echo = tool_use(f"t{n}", "read", path=body) if is_call else text(body)
        answer = tool_result(f"t{n}", body) if is_call else text(body)
        session.turns += [("assistant", [echo]), ("user", [answer])]
        session.turns += [("system", note)] if note else []
        prompt = session.prompt()
        assert prompt.replays == {"replayed": n + 1}
        assert begins(prompt, whole)
        known = whole
