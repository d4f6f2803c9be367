"""A session that repairs a calculator, in the odd but valid forms that clients write anew."""

from __future__ import annotations

from tests.client.scripts.writing import WORK, call, raw_call, reply

ADD, MUL, TEST = (f"{WORK}/src/{name}.py" for name in ("add", "mul", "test_mul"))

SCRIPTS = {
    "edit": [
        reply(
            "I'll look around first.",
            # keys out of order, a float for a whole number, a needless change of folder
            raw_call(
                "Bash",
                f'{{"timeout": 5000.0, "description": "List", "command": "cd {WORK} && ls src"}}',
            ),
        ),
        call("Read", file_path=f"{WORK}/README.md"),
        reply("  Now the sources.\n", call("Read", file_path=ADD), call("Read", file_path=MUL)),
        call("Bash", description="Run the test", command="python3 tests/test_add.py"),
        reply(
            "The operator is wrong.",
            raw_call(
                "Edit",
                f'{{"new_string":"a + b  # caf\\u00e9","old_string":"a - b","file_path":"{ADD}"}}',
            ),
        ),
        call("Bash", command="python3 tests/test_add.py", description="Run it again"),
        call("Edit", replace_all=True, file_path=MUL, old_string="a - b", new_string="a * b"),
        # spaces at line ends
        call("Write", content="from mul import mul  \nassert mul(2, 3) == 6\n", file_path=TEST),
        call("Bash", command="cd src && python3 test_mul.py && echo fine", timeout="5000"),
        reply("A file that isn't there.", call("Read", file_path=f"{WORK}/src/missing.py")),
        call("Bash", command="git diff --stat && git status --short", description="Show"),
        call("Bash", command="git add -A && git commit -qm Repair", description="Commit"),
        "Both operators are right now, and tests say so.",
    ],
    "more": [
        call("Bash", command="git log --oneline", description="Log"),
        "The work is committed.",
    ],
}
