"""What goes wrong in a session, and what is cut short."""

from __future__ import annotations

from tests.client.scripts.writing import call, raw_call, reply

SCRIPTS: dict[str, list[str]] = {
    # each number is as many tokens as it has digits
    "grow": [
        call("Bash", command=f"seq {n}001 {n}400", description="Count") for n in range(1, 10)
    ],
    "grown": [
        reply("On it goes.", call("Bash", command="echo grown", description="Speak")),
        "It was counted.",
    ],
    "loose": [
        call("Bash", command="exit 3", description="Fail"),
        call("NoSuchTool", depth=1.0),
        call("Bash", description="No command"),
        # one brace is missing: no call, and so the end
        raw_call("Bash", '{"command": "true"'),
    ],
    "long": ["word " * 3000],
    "cut": ["word " * 600, "That was the rest."],
    "cut_call": [call("Bash", command="echo " + "word " * 600, description="Long"), "Too long."],
    "short": ["word " * 120, "And that was it."],
}
