"""A main agent that hands work to others: siblings, forks, and agents that run beside it."""

from __future__ import annotations

from tests.client.scripts.writing import WORK, call, reply

NAMES = ("add", "sub", "mul")


def _agent(script: str, kind: str, **more: object) -> str:
    return call(
        "Agent",
        description=f"Inspect {script}",
        prompt=f"[[S:{script}]] Say which functions the file has that was named to you.",
        subagent_type=kind,
        **more,
    )


def _inspection(name: str) -> list[str]:
    return [
        reply(
            f"Looking at {name}.",
            call("Bash", description="Count", command=f"cd {WORK} && wc -l src/{name}.py"),
            call("Read", file_path=f"{WORK}/src/{name}.py"),
        ),
        f"There is one function, {name}.",
    ]


SCRIPTS = {
    "siblings": [
        reply(
            "Three agents may look at once.",
            *(_agent(name, "general-purpose", run_in_background=False) for name in NAMES),
        ),
        call("Bash", command="git status --short", description="Status"),
        "All three have answered.",
    ],
    "background": [
        reply("One agent may look by itself.", _agent("sub", "general-purpose")),
        "I wait for it.",
        "It has answered.",
    ],
    "forks": [
        reply("First a look.", call("Read", file_path=f"{WORK}/src/add.py")),
        reply(*(_agent(f"fork_{name}", "fork") for name in NAMES[1:])),
        "I wait for both.",
        "One has answered.",
        "Both have.",
    ],
    "search": [
        call("ToolSearch", query="select:CronList", max_results=1.0),
        call("CronList"),
        "Nothing is planned.",
    ],
    **{name: _inspection(name) for name in NAMES},
    **{f"fork_{name}": _inspection(name) for name in NAMES},
}
