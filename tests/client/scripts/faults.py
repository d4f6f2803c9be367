"""What goes wrong in a session, and what is cut short."""

from __future__ import annotations

from tests.client.scripts.writing import call, raw_call, reply

SCRIPTS: dict[str, list[str]] = {
    # each number is as many tokens as it has digits
    "grow": [call("Bash", command="seq 1001 1150", description="Count")] * 12,
    "leap": [call("Bash", command="seq 1001 1400", description="Count")] * 12,
    # a compaction keeps the last one to three rounds, which count as given replies; how many
    # depends on as little as the length of the folder's name
    "grown": [
        "Never said.",
        reply("On it goes.", call("Bash", command="echo grown", description="Speak")),
        *["It was counted."] * 2,
    ],
    "loose": [
        call("Bash", command="exit 3", description="Fail"),
        call("NoSuchTool", depth=1.0),
        call("Bash", description="No command"),
        # a colon is missing: no call, and so the end
        raw_call("Bash", '{"command" "true"}'),
    ],
    "endless": ["word " * 3000],
    "long": ["word " * 400 + "And that was it."],
    "cut": ["word " * 800, "That was the rest."],
    "cut_call": [call("Bash", command="echo " + "word " * 800, description="Long"), "Too long."],
}
