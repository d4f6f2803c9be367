"""What may happen to the states on the disk between two starts: it costs reuse, never a reply.

All in exact mode but for what is about other modes, so that a reply may be compared with one that
was computed from nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.process import ServerProcess, ask, server_process
from ratoon.bench import sessions
from ratoon.config import Settings
from ratoon.disk.files import StateFiles
from ratoon.disk.folder import Fault, faults
from ratoon.disk.index import FILE
from tests.model.live import Live, live

pytestmark = pytest.mark.model

N_OUTPUT = 4
FAST = ("--n-ctx", "2048", "--threads", "1")
EXACT = (*FAST, "--exact")
RECORDS = sessions.coding(2, seed=31)
# takes from root what lets it write where modes say no
UNPRIVILEGED = ("setpriv", "--bounding-set=-dac_override,-fowner")
Replies = list[list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Kept:
    """A folder with the states of a session, and what a server that had none replied to it."""

    model: Path
    states: Path
    replies: Replies

    def copy(self, target: Path) -> Path:
        shutil.copytree(self.states, target)
        return target


def serve(
    folder: Path, model: Path, *flags: str, wrapper: Sequence[str] = ()
) -> AbstractContextManager[ServerProcess]:
    """With its states in ``folder/states``, its log in ``folder``."""
    states = ("--cache-dir", str(folder / "states"))
    return server_process(folder, "--model", str(model), *states, *flags, wrapper=wrapper)


def replies_of(server: ServerProcess | Live) -> Replies:
    """Those to the session, one request after the other."""
    return [ask(server.url, record["body"], N_OUTPUT).content for record in RECORDS]


def flags_of(settings: dict[str, Any]) -> list[str]:
    """A server's, in the tests' small window."""
    flags = [f"--kv-type={settings['kv_type']}"] if "kv_type" in settings else []
    return [*FAST, *flags, *(["--exact"] if settings.get("exact") else [])]


def state_files(folder: Path) -> list[Path]:
    found = sorted((folder / "states").glob("*.state"))
    assert found
    return found


def bad_files(folder: Path) -> list[Fault]:
    """Files that are not what they should be. A half-written one that a killed server leaves has
    another name, until the next one sweeps it."""
    files = StateFiles(folder / "states")
    return [found for found in faults(files) if isinstance(found, Fault)]


@pytest.fixture(scope="module", params=["llama", "qwen35"])
def either(
    request: pytest.FixtureRequest,
    tiny_path: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Kept:
    """States that can be cut, or whole ones with parts."""
    return keep(tiny_path(request.param), tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def kept(tiny_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return keep(tiny_path("llama"), tmp_path_factory.mktemp("kept"))


def keep(model: Path, folder: Path) -> Kept:
    with serve(folder, model, *EXACT) as server:
        replies = replies_of(server)
        assert server.ended[0].layer == "cold"
        assert server.stop() == 0
    return Kept(model, folder / "states", replies)


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def flip_payload(file: Path) -> None:
    flip(file, file.stat().st_size * 3 // 4)


def flip_head(file: Path) -> None:
    flip(file, 100)


def tear(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


@pytest.mark.parametrize("damage", [flip_payload, flip_head, tear])
def test_damaged_files_are_removed(
    either: Kept, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    either.copy(tmp_path / "states")
    files = state_files(tmp_path)
    for file in files:
        damage(file)
    with serve(tmp_path, either.model, *EXACT) as server:
        assert replies_of(server) == either.replies
        assert server.ended[0].layer == "cold"
        assert "removed the snapshot" in server.log
        assert "Traceback" not in server.log
        server.stop()
        # what is not asked for is not read, so its damage may still be there, but never used
        unread = {fault.key for fault in bad_files(tmp_path)}
        assert unread < {file.stem for file in files}
        server.start()
        assert replies_of(server) == either.replies
        assert server.ended[0].layer == "disk"


def test_a_read_only_folder_is_read(kept: Kept, tmp_path: Path) -> None:
    states = kept.copy(tmp_path / "states")
    before = {file.name for file in states.glob("*.state")}
    states.chmod(0o555)
    wrapper = UNPRIVILEGED if os.geteuid() == 0 else ()
    another = sessions.coding(0, seed=32)[0]["body"]
    try:
        with serve(tmp_path, kept.model, *EXACT, wrapper=wrapper) as server:
            assert replies_of(server) == kept.replies
            assert server.ended[0].layer == "disk"
            ask(server.url, another, N_OUTPUT)
            server.wait_until_written()
            assert server.stop() == 0
            assert "can't write to" in server.log
            assert "Traceback" not in server.log
    finally:
        states.chmod(0o755)
    assert {file.name for file in states.glob("*.state")} == before
    assert bad_files(tmp_path) == []


def test_states_of_another_model_or_setting_are_left_alone(
    kept: Kept, tiny_path: Callable[[str], Path], tmp_path: Path
) -> None:
    kept.copy(tmp_path / "states")
    q8_0: dict[str, Any] = {"kv_type": "q8_0"}
    others = [
        (kept.model, q8_0),
        (kept.model, {"kv_type": "f32"}),  # as in exact mode
        (tiny_path("qwen3"), {"exact": True}),
    ]
    for model, more in others:
        settings = Settings(model=str(model), n_ctx=2048, threads=1, disk_bytes=0, **more)
        with live(settings) as cold_server:
            cold = replies_of(cold_server)
        with serve(tmp_path, model, *flags_of(more)) as server:
            assert replies_of(server) == cold
            assert server.ended[0].layer == "cold"
            assert "of other models, builds or settings are left alone" in server.log
            assert server.stop() == 0
            assert "Traceback" not in server.log
    for more in ({"exact": True}, q8_0):  # and back again
        with serve(tmp_path, kept.model, *flags_of(more)) as server:
            replies = replies_of(server)
            assert server.ended[0].layer == "disk"
            assert replies == kept.replies or "exact" not in more
    assert bad_files(tmp_path) == []


def test_a_garbage_index_is_made_anew(kept: Kept, tmp_path: Path) -> None:
    states = kept.copy(tmp_path / "states")
    (states / FILE).write_bytes(b"garbage" * 1000)
    with serve(tmp_path, kept.model, *EXACT) as server:
        assert replies_of(server) == kept.replies
        assert server.ended[0].layer == "disk"
        assert "is damaged" in server.log
        assert "Traceback" not in server.log


def test_a_full_disk_keeps_nothing_and_breaks_nothing(kept: Kept, tmp_path: Path) -> None:
    """The kernel's own refusal: states are larger than any file may get."""
    limit = min(file.stat().st_size for file in kept.states.glob("*.state")) // 2
    with serve(tmp_path, kept.model, *EXACT, wrapper=("prlimit", f"--fsize={limit}")) as server:
        assert replies_of(server) == kept.replies
        server.wait_until_written()
        assert replies_of(server) == kept.replies
        assert server.stop() == 0
        assert "can't write to" in server.log
        assert "Traceback" not in server.log
    assert list((tmp_path / "states").glob("*.state")) == []
    assert bad_files(tmp_path) == []
    with serve(tmp_path, kept.model, *EXACT) as server:
        assert replies_of(server) == kept.replies
        assert server.ended[0].layer == "cold"
        server.stop()
        server.start()
        assert replies_of(server) == kept.replies
        assert server.ended[0].layer == "disk"


def test_states_longer_than_the_window(tiny_path: Callable[[str], Path], tmp_path: Path) -> None:
    """A prompt that fits begins like a state that does not."""
    text = sessions.prose(33, "long", 600)
    long, short = (
        {"model": "local", "messages": [{"role": "user", "content": part}]}
        for part in (text, text[: len(text) // 4])
    )
    model = tiny_path("llama")
    with serve(tmp_path, model, *EXACT) as server:
        n_prompt = ask(server.url, long, N_OUTPUT).n_prompt
        server.stop()
    assert n_prompt > 512
    settings = Settings(model=str(model), n_ctx=512, threads=1, exact=True, disk_bytes=0)
    with live(settings) as cold_server:
        cold = ask(cold_server.url, short, N_OUTPUT)
    with serve(tmp_path, model, *EXACT, "--n-ctx", "512") as server:
        assert ask(server.url, short, N_OUTPUT).content == cold.content
        assert server.is_alive
        assert "Traceback" not in server.log
    assert bad_files(tmp_path) == []


def test_two_servers_on_one_folder(kept: Kept, tmp_path: Path) -> None:
    """Each computes sessions of its own and one that both know."""
    states = ("--cache-dir", str(tmp_path / "states"), "--model", str(kept.model), *EXACT)
    own = [sessions.coding(1, seed=seed) for seed in (34, 35)]
    with (
        server_process(tmp_path / "a", *states) as a,
        server_process(tmp_path / "b", *states) as b,
    ):
        for server, records in zip((a, b), own, strict=True):
            assert replies_of(server) == kept.replies
            for record in records:
                ask(server.url, record["body"], N_OUTPUT)
        a.stop()
        b.wait_until_written()
        b.kill()
        for server, records in zip((b, a), own, strict=True):  # each takes up what the other did
            server.start()
            (reply, *_) = [ask(server.url, record["body"], N_OUTPUT) for record in records]
            assert server.ended[0].layer == "disk"
            assert reply.n_cached > 0.97 * reply.n_prompt
            assert replies_of(server) == kept.replies
            assert "Traceback" not in server.log
    assert bad_files(tmp_path) == []
