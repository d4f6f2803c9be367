"""How a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from ratoon.errors import ConfigError

MAX_SEQ = 256  # LLAMA_MAX_SEQ
KV_TYPES = ("f32", "f16", "q8_0", "q4_0")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How to load a model and size its context. Zero means: choose.

    ``is_exact`` makes logits independent of how a prompt was cut, cached or batched: one KV stream
    per sequence (the order of a sum depends on where a cell lies), f32 KV, no flash attention, no
    repacked weights, sliding windows that forget nothing, and never a batch of one row.
    """

    n_ctx: int = 0
    n_cells: int = 0
    n_seq: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 0
    n_gpu_layers: int = 0
    kv_type: str = "f16"
    flash_attn: str = "auto"
    is_exact: bool = False

    def __post_init__(self) -> None:
        if self.n_ubatch > self.n_batch:
            raise ConfigError(
                f"n_ubatch ({self.n_ubatch}) must not be larger than n_batch ({self.n_batch}): "
                "n_batch is the work of one step, n_ubatch the part of it computed at once"
            )
        if self.n_seq > self.n_batch:
            raise ConfigError(
                f"n_seq ({self.n_seq}) must not be larger than n_batch ({self.n_batch}): "
                "a step has room for a token of each sequence"
            )
        if self.is_exact and self.n_ubatch < 2:
            raise ConfigError(f"exact mode needs an n_ubatch of at least 2, not {self.n_ubatch}")
        if self.n_seq > MAX_SEQ:
            raise ConfigError(f"n_seq ({self.n_seq}) must be at most {MAX_SEQ}")
        if self.kv_type not in KV_TYPES:
            raise ConfigError(f"kv_type {self.kv_type!r} is not one of {', '.join(KV_TYPES)}")
        if self.kv_type.startswith("q") and self.flash_attn == "off" and not self.is_exact:
            raise ConfigError(f"kv_type {self.kv_type} needs flash attention (flash_attn is off)")
