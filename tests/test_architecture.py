"""The layer table, proven: imports go down only, and each outside library has its place."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
FILES = sorted((SOURCE / "ratoon").rglob("*.py"))
MODULES = {
    ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for file in FILES
}
N_FILE_LINES = 450
N_FUNCTION_LINES = 60

# lowest first; a module may import its own package, lower layers, and, if it is a leaf, leaves
LAYERS: list[set[str]] = [
    {"config", "errors", "keys", "logs", "metrics", "weights", "wire"}
    | {"engine.request", "engine.events", "chat.vocab"},
    {"cache", "disk", "reuse"},
    {"engine", "chat"},
    {"router"},
    {"api", "console", "bench", "client"},
    {"kept"},
    {"build"},
    {"cli"},
]
ENTRY = {"", "__main__"}

# library → the only packages or modules that may import it
PLACES = {
    "ctypes": {"engine.llama", "engine.llama_vocab"},
    "llama_cpp": {"engine.llama", "engine.llama_vocab"},
    "numpy": {"engine"},
    "starlette": {"api", "router", "console"},
    "fastapi": {"api", "router", "console"},
    "uvicorn": {"cli"},
    "typer": {"cli"},
    "rich": {"cli"},
    "jinja2": {"chat"},
    "llguidance": {"chat.grammar.compiler"},
    "threading": {
        "engine.engine",
        "engine.keeper",
        "reuse.replies",
        "cli.serve",
        "disk.store",
        "disk.behind",
    },
    "fcntl": {"disk"},
    "matplotlib": {"bench.plot"},
    "xllamacpp": {"bench.peer"},
    "sqlite3": {"disk"},
    "asyncio": {"cli.serve", "api", "router", "console", "bench", "client"},
    "huggingface_hub": {"weights"},
    "pydantic_settings": {"config"},
    "openai": {"router.openai_llm"},
    "anthropic": {"router.anthropic_llm"},
    "cryptography": {"router.box"},
    "jsonschema": {"router.fault"},
    "httpx": {"bench", "client", "cli.claude", "router"},
}
# the cache decides; it never waits, measures time or talks to anything
CACHE_LIBRARIES = sys.stdlib_module_names - {"asyncio", "ctypes", "socket", "threading", "time"}
REUSE_LIBRARIES = CACHE_LIBRARIES | {"threading"}


def name_of(file: Path) -> str:
    """``cache.radix`` for ``src/ratoon/cache/radix.py``; packages without ``__init__``."""
    parts = file.relative_to(SOURCE / "ratoon").with_suffix("").parts
    return ".".join(parts).removesuffix("__init__").removesuffix(".")


def imports(tree: ast.Module) -> Iterator[str]:
    """Full names of all imported modules, wherever the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def layer_of(module: str) -> int:
    # the longest name wins: engine.request is a leaf though engine is not
    found = [
        (len(package), level)
        for level, packages in enumerate(LAYERS)
        for package in packages
        if is_in(module, package)
    ]
    assert found, f"ratoon.{module} has no place in the layer table"
    return max(found)[1]


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def public_classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node


each_file = pytest.mark.parametrize("file", FILES, ids=name_of)


@each_file
def test_imports_go_down_only(file: Path) -> None:
    module = name_of(file)
    if module in ENTRY:
        return
    own = module.partition(".")[0]
    for imported in imports(parsed(file)):
        if not is_in(imported, "ratoon"):
            continue
        target = imported.removeprefix("ratoon").removeprefix(".")
        level = layer_of(module)
        is_lower = layer_of(target) < level or layer_of(target) == level == 0
        # a leaf inside a package may not lean on the package around it
        is_own = is_in(target, own) and level > 0
        assert is_lower or is_own, f"ratoon.{module} imports {imported}, which is not below it"


@each_file
def test_api_does_not_know_the_cache(file: Path) -> None:
    if is_in(name_of(file), "api"):
        assert not [name for name in imports(parsed(file)) if is_in(name, "ratoon.cache")]


@each_file
def test_cache_is_pure(file: Path) -> None:
    if not is_in(name_of(file), "cache"):
        return
    for imported in imports(parsed(file)):
        is_ours = is_in(imported, "ratoon.cache") or imported == "ratoon.errors"
        assert is_ours or imported.partition(".")[0] in CACHE_LIBRARIES, imported


@each_file
def test_reuse_is_pure(file: Path) -> None:
    if not is_in(name_of(file), "reuse"):
        return
    for imported in imports(parsed(file)):
        is_ours = is_in(imported, "ratoon.reuse")
        assert is_ours or imported.partition(".")[0] in REUSE_LIBRARIES, imported


@each_file
def test_libraries_keep_to_their_places(file: Path) -> None:
    module = name_of(file)
    for imported in imports(parsed(file)):
        places = PLACES.get(imported.partition(".")[0])
        if places is not None:
            assert any(is_in(module, place) for place in places), f"{module} imports {imported}"


@each_file
def test_sizes(file: Path) -> None:
    n_lines = len(file.read_text(encoding="utf-8").splitlines())
    assert n_lines <= N_FILE_LINES, f"{file.name} has {n_lines} lines"
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            n_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert n_lines <= N_FUNCTION_LINES, f"{node.name} has {n_lines} lines"


@each_file
def test_print_is_for_the_command_line(file: Path) -> None:
    if is_in(name_of(file), "cli"):
        return
    names = [node.id for node in ast.walk(parsed(file)) if isinstance(node, ast.Name)]
    assert "print" not in names


@each_file
def test_what_is_public_is_described(file: Path) -> None:
    tree = parsed(file)
    if not tree.body:
        return
    assert ast.get_docstring(tree), f"{file.name} has no docstring"
    for node in public_classes(tree):
        # fields and members tell what they are; behaviour has to be described
        if any(isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) for item in node.body):
            assert ast.get_docstring(node), f"{file.name}: {node.name} has no docstring"


def test_a_cycle_between_packages_would_be_seen() -> None:
    assert layer_of("engine.request") < layer_of("cache") < layer_of("engine.scheduler")
    assert layer_of("engine.llama") == layer_of("chat.render") < layer_of("api.app")
