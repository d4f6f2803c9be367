"""The cache's limits."""

from __future__ import annotations

from dataclasses import dataclass

from ratoon.cache.placement import MemoryKind


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """``n_*`` are tokens or cells; see ``ModelShape`` for the first six."""

    n_ctx: int
    n_cells: int
    n_seq: int
    n_ubatch: int
    memory: MemoryKind
    is_unified: bool
    bytes_per_token: int
    host_bytes: int
    min_reuse: int = 16  # gains smaller than this are not worth a copy or a wait
    min_snapshot: int = 32  # a state that saves fewer tokens is dropped, not saved
    max_tail: int = 0  # a parked state may lose this much to the request that continues it
    max_burden: int = 512  # unshared cells of parked states that running requests put up with
    park_s: float = 2.0  # a parked state stays on the device this long beside running requests
