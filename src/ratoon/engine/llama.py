"""The model protocol on llama.cpp, by llama-cpp-python's low-level bindings.

The only file that touches C. Return codes become exceptions on the spot.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import llama_cpp.llama_cpp as C
import numpy as np

from ratoon.cache.placement import MemoryKind, SeqId
from ratoon.chat.vocab import Special
from ratoon.engine.model import BadState, Chunk, Logits, ModelShape, NoRoom
from ratoon.errors import ConfigError, ModelError

log = logging.getLogger("ratoon.llama")

MAX_SEQ = 256  # LLAMA_MAX_SEQ
# A cell of default KV memory is small beside the weights of a model this size; see _auto_cells.
AUTO_CELLS_BYTES = 2 << 30

KV_TYPES = {
    "f32": C.GGML_TYPE_F32,
    "f16": C.GGML_TYPE_F16,
    "q8_0": C.GGML_TYPE_Q8_0,
    "q4_0": C.GGML_TYPE_Q4_0,
}
FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}  # enum llama_flash_attn_type


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How to load a model and size its context. Zero means: choose.

    ``is_exact`` makes logits independent of how a prompt was cut, cached or batched: one KV stream
    per sequence (the order of a sum depends on where a cell lies), f32 KV, no flash attention, no
    repacked weights, and never a batch of one row (kernels differ between one row and several).
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
        if self.is_exact and self.n_batch < 2:
            raise ConfigError(f"exact mode needs an n_batch of at least 2, not {self.n_batch}")
        if self.n_seq > MAX_SEQ:
            raise ConfigError(f"n_seq ({self.n_seq}) must be at most {MAX_SEQ}")
        if self.kv_type not in KV_TYPES:
            raise ConfigError(f"kv_type {self.kv_type!r} is not one of {', '.join(KV_TYPES)}")
        if self.kv_type.startswith("q") and self.flash_attn == "off" and not self.is_exact:
            raise ConfigError(f"kv_type {self.kv_type} needs flash attention (flash_attn is off)")


class LlamaVocab:
    """The tokenizer of a loaded model. Thread-safe."""

    def __init__(self, handle: C.llama_vocab_p) -> None:
        self._vocab = handle
        self._pieces: dict[int, bytes] = {}

    @cached_property
    def n_tokens(self) -> int:
        return int(C.llama_vocab_n_tokens(self._vocab))

    @cached_property
    def bos_id(self) -> int | None:
        return _optional(C.llama_vocab_bos(self._vocab))

    @cached_property
    def eos_id(self) -> int | None:
        return _optional(C.llama_vocab_eos(self._vocab))

    @cached_property
    def adds_bos(self) -> bool:
        return bool(C.llama_vocab_get_add_bos(self._vocab))

    @cached_property
    def specials(self) -> Mapping[str, Special]:
        controls = C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN
        found: dict[str, Special] = {}
        for token in range(self.n_tokens):
            attr = C.llama_vocab_get_attr(self._vocab, token)
            if attr & (controls | C.LLAMA_TOKEN_ATTR_USER_DEFINED):
                text = C.llama_vocab_get_text(self._vocab, token).decode("utf-8", "replace")
                if text:
                    found[text] = Special(id=token, is_control=bool(attr & controls))
        return found

    def tokenize(self, text: str) -> list[int]:
        return self._tokenize(text, parse_special=False)

    def tokenize_markup(self, text: str) -> list[int]:
        """Tokens of trusted text: control token texts become control tokens."""
        return self._tokenize(text, parse_special=True)

    def _tokenize(self, text: str, parse_special: bool) -> list[int]:
        raw = text.encode("utf-8", "surrogatepass")
        room = len(raw) + 8
        buffer = (C.llama_token * room)()
        n = C.llama_tokenize(self._vocab, raw, len(raw), buffer, room, False, parse_special)
        if n < 0:
            raise ModelError(f"the tokenizer failed on {len(raw)} bytes of text")
        return buffer[:n]

    def piece(self, token: int) -> bytes:
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._piece(token)
        return known

    def _piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        n = C.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, True)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = C.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, True)
        return buffer.raw[:n]

    def is_end(self, token: int) -> bool:
        return bool(C.llama_vocab_is_eog(self._vocab, token))


class RowBatch:
    """One reusable ``llama_batch`` over numpy arrays, filled by slices instead of per row."""

    def __init__(self, n_rows: int) -> None:
        self.tokens = np.zeros(n_rows, np.int32)
        self.positions = np.zeros(n_rows, np.int32)
        self.n_seqs = np.ones(n_rows, np.int32)
        self.seqs = np.zeros(n_rows, np.int32)
        self.outputs = np.zeros(n_rows, np.int8)
        # seq_id is an array of pointers, one per row, each to that row's single id
        self._pointers = self.seqs.ctypes.data + 4 * np.arange(n_rows, dtype=np.uintp)
        self.struct = C.llama_batch(
            n_tokens=0,
            token=self.tokens.ctypes.data_as(ctypes.POINTER(C.llama_token)),
            embd=None,
            pos=self.positions.ctypes.data_as(ctypes.POINTER(C.llama_pos)),
            n_seq_id=self.n_seqs.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            seq_id=self._pointers.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(C.llama_seq_id))),
            logits=self.outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, chunks: Sequence[Chunk]) -> list[int]:
        """Write the rows; returns each chunk's last row index."""
        n = 0
        last: list[int] = []
        for chunk in chunks:
            end = n + len(chunk.tokens)
            self.tokens[n:end] = chunk.tokens
            self.positions[n:end] = np.arange(chunk.start, chunk.start + end - n)
            self.seqs[n:end] = chunk.seq_id
            self.outputs[n:end] = 0
            self.outputs[end - 1] = chunk.wants_logits
            last.append(end - 1)
            n = end
        self.struct.n_tokens = n
        return last


class LlamaModel:
    """A GGUF model and one context. Owns both C handles until ``close``."""

    def __init__(self, handle: C.llama_model_p, path: Path, options: ModelOptions) -> None:
        self._model = handle
        self._exact = options.is_exact
        self.name = path.stem
        self.vocab = LlamaVocab(C.llama_model_get_vocab(handle))
        self.n_ctx_train = int(C.llama_model_n_ctx_train(handle))
        self._context = _open_context(handle, options)
        self._memory = C.llama_get_memory(self._context)
        self.shape = self._measure(options)
        # one spare row: exact mode pairs a lone row with a dummy
        self._batch = RowBatch(self.shape.n_batch + 1)
        self._n_vocab = self.vocab.n_tokens

    def _measure(self, options: ModelOptions) -> ModelShape:
        n_cells = int(C.llama_n_ctx(self._context))
        n_seq_ctx = int(C.llama_n_ctx_seq(self._context))
        wanted = options.n_ctx or self.n_ctx_train
        # exact mode writes one dummy cell past the end
        n_ctx = min(wanted, n_seq_ctx - 1 if self._exact else n_seq_ctx)
        return ModelShape(
            n_ctx=n_ctx,
            n_cells=n_cells,
            n_seq=int(C.llama_n_seq_max(self._context)),
            n_batch=options.n_batch,
            n_ubatch=options.n_ubatch,
            memory=_memory_kind(self._model),
            is_unified=not self._exact,
            bytes_per_token=self._bytes_per_token(min(8, options.n_batch)),
        )

    def _bytes_per_token(self, n: int) -> int:
        """Measured: the growth of a saved state over a few tokens."""
        empty = C.llama_state_seq_get_size(self._context, 0)
        token = self.vocab.bos_id or 0
        self.forward_rows([Chunk(SeqId(0), 0, [token] * n, wants_logits=False)], RowBatch(n))
        size = C.llama_state_seq_get_size(self._context, 0)
        C.llama_memory_clear(self._memory, True)
        return max(1, int(size - empty) // n)

    @cached_property
    def chat_template(self) -> str | None:
        raw = C.llama_model_chat_template(self._model, None)
        return raw.decode("utf-8") if raw else None

    def is_end(self, token: int) -> bool:
        return self.vocab.is_end(token)

    def forward(self, chunks: Sequence[Chunk]) -> list[Logits | None]:
        if self._exact:
            return [self._forward_exact(chunk) for chunk in chunks]
        return self.forward_rows(chunks, self._batch)

    def forward_rows(self, chunks: Sequence[Chunk], batch: RowBatch) -> list[Logits | None]:
        last = batch.fill(chunks)
        code = C.llama_decode(self._context, batch.struct)
        if code == 1:
            raise NoRoom(f"no free KV cells for {batch.struct.n_tokens} tokens")
        if code != 0:
            raise ModelError(f"llama_decode failed with code {code}")
        return [
            self._logits(row) if chunk.wants_logits else None
            for chunk, row in zip(chunks, last, strict=True)
        ]

    def _forward_exact(self, chunk: Chunk) -> Logits | None:
        """One sequence, one ubatch at a time, and at least two rows in each."""
        step = self.shape.n_ubatch
        logits: Logits | None = None
        for i in range(0, len(chunk.tokens), step):
            tokens = chunk.tokens[i : i + step]
            start = chunk.start + i
            wants = chunk.wants_logits and i + step >= len(chunk.tokens)
            rows = [Chunk(chunk.seq_id, start, tokens, wants)]
            if len(tokens) == 1:
                rows.append(Chunk(chunk.seq_id, start + 1, tokens, False))
            out = self.forward_rows(rows, self._batch)[0]
            if len(tokens) == 1:
                self.drop(chunk.seq_id, start + 1)
            logits = None if out is None else out.copy()
        return logits

    def _logits(self, row: int) -> Logits:
        pointer = C.llama_get_logits_ith(self._context, row)
        if not pointer:
            raise ModelError(f"llama.cpp kept no logits for row {row}")
        return np.ctypeslib.as_array(pointer, shape=(self._n_vocab,))

    def copy(self, src: SeqId, dst: SeqId, n_tokens: int) -> None:
        if self.shape.is_unified:
            C.llama_memory_seq_cp(self._memory, src, dst, 0, n_tokens)
            return
        # Between streams seq_cp is deferred to the next decode and would miss a save before it.
        self.restore(dst, self.save(src))
        self.drop(dst, n_tokens)

    def drop(self, seq_id: SeqId, n_keep: int) -> None:
        if not C.llama_memory_seq_rm(self._memory, seq_id, n_keep, -1):
            raise ModelError(f"sequence {seq_id} can't be cut to {n_keep} tokens")

    def save(self, seq_id: SeqId) -> memoryview:
        size = C.llama_state_seq_get_size(self._context, seq_id)
        buffer = np.empty(size, np.uint8)
        pointer = buffer.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if C.llama_state_seq_get_data(self._context, pointer, size, seq_id) != size:
            raise ModelError(f"the state of sequence {seq_id} could not be saved")
        return buffer.data

    def restore(self, seq_id: SeqId, data: memoryview) -> None:
        view = np.frombuffer(data, np.uint8)
        pointer = view.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if C.llama_state_seq_set_data(self._context, pointer, len(data), seq_id) != len(data):
            C.llama_memory_seq_rm(self._memory, seq_id, -1, -1)
            raise BadState(f"a saved state of {len(data)} bytes was refused")

    def close(self) -> None:
        C.llama_free(self._context)
        C.llama_model_free(self._model)


def load_model(
    path: Path, options: ModelOptions, progress: Callable[[float], None] | None = None
) -> LlamaModel:
    """Load a GGUF file, telling ``progress`` the loaded share (0 to 1).

    Raises ModelError, ConfigError.
    """
    params = C.llama_model_default_params()
    params.n_gpu_layers = options.n_gpu_layers
    params.use_extra_bufts = not options.is_exact

    def report(share: float, _data: object) -> bool:
        if progress is not None:
            progress(share)
        return True

    callback = C.llama_progress_callback(report)
    params.progress_callback = callback
    return LlamaModel(_load(path, params), path, options)


def load_vocab(path: Path) -> LlamaVocab:
    """Only the tokenizer of a GGUF file; its memory is never freed."""
    params = C.llama_model_default_params()
    params.vocab_only = True
    return LlamaVocab(C.llama_model_get_vocab(_load(path, params)))


def _load(path: Path, params: C.llama_model_params) -> C.llama_model_p:
    _start_backend()
    if not path.is_file():
        raise ModelError(f"no model file at {path}")
    _errors.clear()
    handle: C.llama_model_p = C.llama_model_load_from_file(os.fsencode(path), params)
    if not handle:
        raise ModelError(f"llama.cpp could not load {path}: {_last_error() or 'no reason given'}")
    return handle


def _open_context(handle: C.llama_model_p, options: ModelOptions) -> C.llama_context_p:
    params = C.llama_context_default_params()
    n_threads = options.n_threads or os.cpu_count() or 1
    n_ctx = options.n_ctx or int(C.llama_model_n_ctx_train(handle))
    params.n_batch, params.n_ubatch = options.n_batch, options.n_ubatch
    params.n_threads = params.n_threads_batch = n_threads
    params.no_perf = True
    if options.is_exact:
        params.n_seq_max = options.n_seq or min(8, options.n_batch)
        params.n_ctx = (n_ctx + 1) * params.n_seq_max
        params.kv_unified = False
        params.type_k = params.type_v = C.GGML_TYPE_F32
        params.flash_attn_type = FLASH_ATTN["off"]
    else:
        most = MAX_SEQ if _memory_kind(handle).can_trim else 16
        params.n_seq_max = options.n_seq or min(most, options.n_batch)
        params.n_ctx = options.n_cells or _auto_cells(handle, n_ctx)
        params.kv_unified = True
        params.type_k = params.type_v = KV_TYPES[options.kv_type]
        params.flash_attn_type = FLASH_ATTN[options.flash_attn]
    _errors.clear()
    context: C.llama_context_p = C.llama_init_from_model(handle, params)
    if not context:
        raise ModelError(f"no context of {params.n_ctx} cells: {_last_error() or 'out of memory?'}")
    return context


def _auto_cells(handle: C.llama_model_p, n_ctx: int) -> int:
    """Room for four full windows where that is cheap, one where it is not."""
    heads = max(1, int(C.llama_model_n_head(handle)))
    width = int(C.llama_model_n_embd(handle)) // heads * int(C.llama_model_n_head_kv(handle))
    per_cell = 4 * width * int(C.llama_model_n_layer(handle))  # f16, keys and values
    return max(n_ctx, min(4 * n_ctx, AUTO_CELLS_BYTES // max(1, per_cell)))


def _memory_kind(handle: C.llama_model_p) -> MemoryKind:
    if C.llama_model_is_recurrent(handle):
        return MemoryKind.RECURRENT
    if C.llama_model_is_hybrid(handle):
        return MemoryKind.HYBRID
    return MemoryKind.WINDOW if C.llama_model_n_swa(handle) > 0 else MemoryKind.FULL


def _optional(token: int) -> int | None:
    return None if token < 0 else int(token)


_errors: list[str] = []


def _on_log(level: int, text: bytes, _data: object) -> None:
    """llama.cpp's own log: errors are kept for the exception that follows, the rest is debug."""
    line = text.decode("utf-8", "replace").rstrip()
    if level == 4:  # GGML_LOG_LEVEL_ERROR
        _errors.append(line)
        del _errors[:-8]
    if line:
        log.debug("%s", line)


_log_callback = C.llama_log_callback(_on_log)
_started = False


def _start_backend() -> None:
    global _started
    if not _started:
        C.llama_log_set(_log_callback, None)
        C.llama_backend_init()
        _started = True


def _last_error() -> str:
    return "; ".join(_errors)
