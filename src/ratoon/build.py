"""The composition root: the only place that knows every part."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratoon.api.app import create_app
from ratoon.api.service import ApiSettings, Service, key_ring
from ratoon.api.think import Signer, ThinkSwitch
from ratoon.chat.formats.table import DIALECTS
from ratoon.chat.guides import GuideMaker
from ratoon.chat.normalise import Rules
from ratoon.chat.render import Renderer
from ratoon.chat.template import ChatTemplate
from ratoon.config import Settings, is_loopback
from ratoon.disk.behind import WriteBehind
from ratoon.disk.fingerprint import Fingerprint
from ratoon.disk.store import DiskConfig, DiskStore
from ratoon.engine.dummy import DummyModel
from ratoon.engine.engine import Engine, EngineConfig
from ratoon.engine.identity import fingerprint
from ratoon.engine.llama import LlamaModel, load_model
from ratoon.engine.model import Model
from ratoon.engine.options import ModelOptions
from ratoon.engine.request import SamplingParams
from ratoon.errors import ConfigError, ModelError
from ratoon.kept import open_catalogues, open_memory, open_records, open_secrets
from ratoon.metrics import Metrics
from ratoon.reuse.replies import ReplyMemory
from ratoon.router.box import KeyBox
from ratoon.router.credentials import Access, Credentials
from ratoon.router.desk import Desk
from ratoon.router.execute import Functions, load_functions
from ratoon.router.hosts import Hosts
from ratoon.router.llm import Llm
from ratoon.router.local_llm import LocalLlm
from ratoon.router.pipeline import PipelineConfig
from ratoon.router.preload import read_preload
from ratoon.router.prompt import Prompts
from ratoon.router.router import MAX_ASKED, Router, RouterConfig
from ratoon.weights import find_weights

log = logging.getLogger("ratoon.build")

DUMMY = "dummy"
CPU_CHUNK = 96
GPU_CHUNK = 256
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class Server:
    """A built server. Whoever built it starts and stops the engine; ``app`` is an ASGI app."""

    app: Callable[..., Any]
    engine: Engine
    kept: tuple[WriteBehind, ...] = ()  # what is remembered on disk

    def close(self) -> None:
        """Let what is remembered reach the disk, within seconds; call it when no reply is open."""
        for each in self.kept:
            each.close()


def build(
    settings: Settings,
    progress: Callable[[float], None] | None = None,
    functions: Functions | None = None,
) -> Server:
    """Wire a server. ``progress`` hears the loaded share of the model, from 0 to 1; ``functions``
    are Python tools, by name, that queries may have run with the executor ``callable``."""
    given = functions or _functions(settings)
    model = _load(settings, progress)
    template = _template_source(settings.chat_template, model)
    identity = _identity(settings, model)
    records = open_records(settings, identity, template)
    replies = open_memory(settings, records)
    engine = Engine(model, _engine_config(settings), store=_store(settings, identity))
    if replies is not None:
        engine.on_lost = replies.forget
    renderer = _renderer(settings, model, template, replies)
    guides = GuideMaker(model.vocab)
    catalogues = open_catalogues(settings, identity)
    kept_secrets = open_secrets(settings, identity)
    inner = secrets.token_urlsafe(32)

    def local() -> Llm:
        return LocalLlm(app, inner, settings.query_timeout_s)

    metrics = Metrics()
    router = Router(
        engine,
        lambda: Prompts(renderer, model.vocab, engine.n_ctx),
        guides,
        _router_config(settings),
        catalogues,
        metrics,
    )
    service = Service(
        engine,
        renderer,
        guides if settings.constrain_tools else None,
        think=ThinkSwitch(is_locked=not settings.think),
        signer=_signer(settings, engine.model_name),
        metrics=metrics,
        keys=key_ring(settings.key, settings.keys_file, inner),
        settings=_api_settings(settings),
        replies=replies,
        router=router,
        desk=_desk(settings, router, kept_secrets, given, local),
    )
    app = create_app(service)
    kept = tuple(each for each in (records, catalogues, kept_secrets and kept_secrets[1]) if each)
    return Server(app, engine, kept)


def _router_config(settings: Settings) -> RouterConfig:
    return RouterConfig(
        max_domains=settings.max_domains,
        preload=read_preload(settings.preload),
        max_asked=max(1, min(MAX_ASKED, settings.max_queue // 2)),
    )


def _desk(
    settings: Settings,
    router: Router,
    kept: tuple[KeyBox, WriteBehind] | None,
    functions: Functions,
    local: Callable[[], Llm],
) -> Desk:
    """Answers queries; the model that is served here is one of those that can."""
    # with keys for others, a proxy may bring in requests from anywhere
    has_local = is_loopback(settings.host) and settings.keys_file is None
    hosts = Hosts(settings.allow_hosts, has_local=has_local)
    default = None
    if settings.llm_provider != "local" and settings.llm_api_key is not None:
        key = settings.llm_api_key.get_secret_value()
        model, base_url = settings.llm_model, settings.llm_base_url
        default = Access(settings.llm_provider, key, model, base_url)
    box, records = kept or (None, None)
    config = PipelineConfig(
        high=settings.high_confidence,
        low=settings.low_confidence,
        max_calls=settings.max_tool_calls,
        timeout_s=settings.query_timeout_s,
        temperature=settings.synthesis_temperature,
        max_tokens=settings.max_synthesis_tokens,
        thinks=settings.enable_thinking,
    )
    return Desk(
        router,
        Credentials(hosts, default, box, records),
        hosts,
        local,
        functions,
        config,
    )


def _functions(settings: Settings) -> Functions:
    return load_functions(settings.tool_functions) if settings.tool_functions else {}


def _load(settings: Settings, progress: Callable[[float], None] | None) -> Model:
    if settings.model == DUMMY:
        return DummyModel(n_ctx=settings.n_ctx) if settings.n_ctx else DummyModel()
    return load_model(find_weights(settings), _model_options(settings), progress)


def _model_options(settings: Settings) -> ModelOptions:
    return ModelOptions(
        n_ctx=settings.n_ctx,
        n_cells=settings.n_cells,
        n_seq=settings.n_seq,
        n_batch=settings.n_batch,
        n_ubatch=settings.n_ubatch,
        n_threads=settings.threads,
        n_gpu_layers=settings.n_gpu_layers,
        kv_type=settings.kv_type,
        flash_attn=settings.flash_attn,
        is_exact=settings.exact,
    )


def _identity(settings: Settings, model: Model) -> Fingerprint | None:
    """What is kept on disk is kept for this; ``None``: nothing is. A new model takes seconds."""
    if not settings.disk_bytes or not isinstance(model, LlamaModel):
        return None
    try:
        return fingerprint(model, settings.states_dir)
    except OSError as error:
        log.warning("nothing is kept on disk: can't read %s: %s", error.filename, error.strerror)
        return None


def _store(settings: Settings, identity: Fingerprint | None) -> DiskStore | None:
    if identity is None:
        return None
    return DiskStore(settings.states_dir, identity, DiskConfig(settings.disk_bytes))


def _chunk(settings: Settings) -> int:
    """Rows of a prompt beside decoding requests. llama.cpp's attention on the CPU takes 64 queries
    or more together and does fewer one by one, in more than half the time that 64 take."""
    return GPU_CHUNK if settings.n_gpu_layers else CPU_CHUNK


def _engine_config(settings: Settings) -> EngineConfig:
    return EngineConfig(
        model_name=settings.model_name or "",
        host_bytes=settings.host_bytes or _ram_bytes() // 4,
        prefill_chunk=settings.prefill_chunk or _chunk(settings),
        max_queue=settings.max_queue,
        has_progress=settings.progress,
        progress_step=settings.progress_step,
        flush_s=settings.flush_s,
    )


def _renderer(
    settings: Settings, model: Model, source: str, replies: ReplyMemory | None
) -> Renderer:
    vocab = model.vocab
    template = ChatTemplate(source, _text(model, vocab.bos_id), _text(model, vocab.eos_id))
    rules = Rules(
        drop_billing=settings.drop_billing,
        fix_total_tokens=settings.fix_total_tokens,
        hoist_system=settings.hoist_system,
    )
    return Renderer(template, vocab, rules, DIALECTS.get(settings.tool_dialect), replies)


def _template_source(file: Path | None, model: Model) -> str:
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"can't read the chat template {file}: {error}") from None
    if model.chat_template is None:
        raise ModelError(f"{model.name} has no chat template; give one with --chat-template FILE")
    return model.chat_template


def _signer(settings: Settings, model_name: str) -> Signer:
    """Proves that reasoning came from this model here; a secret where there is an API key."""
    secret = f"ratoon reasoning {model_name} {settings.key or ''}"
    return Signer(hashlib.sha256(secret.encode()).digest())


def _text(model: Model, token: int | None) -> str:
    return "" if token is None else model.vocab.piece(token).decode("utf-8", "replace")


def _api_settings(settings: Settings) -> ApiSettings:
    sampling = SamplingParams(
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
    )
    return ApiSettings(sampling=sampling, ping_s=settings.ping_s)


def _ram_bytes() -> int:
    """Memory this process may use: the machine's, or its container's share."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.isdigit() else physical
