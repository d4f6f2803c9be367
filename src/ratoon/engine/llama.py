"""The model protocol on llama.cpp, by llama-cpp-python's low-level bindings.

Only this file and ``llama_vocab`` touch C. Return codes become exceptions on the spot.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

import llama_cpp.llama_cpp as C
import numpy as np
from numpy.typing import NDArray

from ratoon.cache.placement import MemoryKind, SeqId
from ratoon.engine.exact import NO_TOKEN, Pairing
from ratoon.engine.llama_vocab import LlamaVocab
from ratoon.engine.model import BadState, Chunk, Logits, ModelShape, NoRoom
from ratoon.engine.options import MAX_SEQ, ModelOptions
from ratoon.errors import ModelError

log = logging.getLogger("ratoon.llama")

# A cell of default KV memory is small beside the weights of a model this size; see _auto_cells.
AUTO_CELLS_BYTES = 2 << 30

KV_TYPES = {
    "f32": C.GGML_TYPE_F32,
    "f16": C.GGML_TYPE_F16,
    "q8_0": C.GGML_TYPE_Q8_0,
    "q4_0": C.GGML_TYPE_Q4_0,
}
FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}  # enum llama_flash_attn_type
PART_ONLY = C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
EXACT_STEP = 32  # a sum over cells is the same if they are moved by a multiple of this
LATE = np.dtype(np.int32)  # how exact mode's late token ends a saved state


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
        self.path, self.options = path, options
        self.name = path.stem
        self.vocab = LlamaVocab(C.llama_model_get_vocab(handle))
        self.n_ctx_train = int(C.llama_model_n_ctx_train(handle))
        self._context = _open_context(handle, options)
        self._memory = C.llama_get_memory(self._context)
        self.shape = self._measure(options)
        self._pairing = self._pair() if options.is_exact else None
        # one spare row: exact mode pairs a lone row with a dummy
        self._batch = RowBatch(self.shape.n_batch + 1)
        self._n_vocab = self.vocab.n_tokens

    def _pair(self) -> Pairing:
        can_cut = self.shape.memory in (MemoryKind.FULL, MemoryKind.WINDOW)
        return Pairing(self, self.shape.n_ubatch, can_cut)

    def _measure(self, options: ModelOptions) -> ModelShape:
        n_cells = int(C.llama_n_ctx(self._context))
        n_seq_ctx = int(C.llama_n_ctx_seq(self._context))
        wanted = options.n_ctx or self.n_ctx_train
        memory = _memory_kind(self._model)
        bytes_per_token, part_bytes = self._measure_bytes(memory, min(8, options.n_batch))
        window = int(C.llama_model_n_swa(self._model))
        return ModelShape(
            # exact mode writes one dummy cell past the end
            n_ctx=min(wanted, n_seq_ctx - 1 if options.is_exact else n_seq_ctx),
            n_cells=n_cells,
            n_seq=int(C.llama_n_seq_max(self._context)),
            n_batch=options.n_batch,
            n_ubatch=options.n_ubatch,
            memory=memory,
            is_unified=not options.is_exact,
            bytes_per_token=bytes_per_token,
            state_bytes=part_bytes * (window if memory is MemoryKind.WINDOW else 1),
            window=window,
            save_step=EXACT_STEP if options.is_exact and window else 1,
        )

    def _measure_bytes(self, memory: MemoryKind, n: int) -> tuple[int, int]:
        """Of a saved state: bytes per token, and of what can't be cut: per token of a window, or
        in all."""
        rows = Chunk(SeqId(0), 0, [self.vocab.bos_id or 0] * n, wants_logits=False)
        # OpenMP keeps threads for each thread that ever computed, as long as that lives, and lets
        # none spin while there are more of them than cores. So it is not this thread that computes.
        with ThreadPoolExecutor(1) as passing:
            passing.submit(self.forward_rows, [rows], RowBatch(n)).result()
        size = int(C.llama_state_seq_get_size(self._context, 0))
        part = int(C.llama_state_seq_get_size_ext(self._context, 0, PART_ONLY))
        C.llama_memory_clear(self._memory, True)
        if memory is MemoryKind.FULL:
            return max(1, size // n), 0
        return (size - part) // n, part // (n if memory is MemoryKind.WINDOW else 1)

    @cached_property
    def chat_template(self) -> str | None:
        raw = C.llama_model_chat_template(self._model, None)
        return raw.decode("utf-8") if raw else None

    def metadata(self, key: str) -> str:
        """A value of the GGUF file's metadata; empty if there is none."""
        buffer = ctypes.create_string_buffer(256)
        n = C.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if n >= 0 else ""

    @property
    def n_ctx_seq(self) -> int:
        """The window that llama.cpp counts with, which may be more than a request may use."""
        return int(C.llama_n_ctx_seq(self._context))

    def is_end(self, token: int) -> bool:
        return self.vocab.is_end(token)

    def forward(self, chunks: Sequence[Chunk]) -> list[Logits | None]:
        if self._pairing is not None:
            return [self._pairing.forward(chunk) for chunk in chunks]
        return self.forward_rows(chunks)

    def forward_rows(
        self, chunks: Sequence[Chunk], batch: RowBatch | None = None
    ) -> list[Logits | None]:
        """One decode, as it comes."""
        batch = batch or self._batch
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

    def _logits(self, row: int) -> Logits:
        pointer = C.llama_get_logits_ith(self._context, row)
        if not pointer:
            raise ModelError(f"llama.cpp kept no logits for row {row}")
        return np.ctypeslib.as_array(pointer, shape=(self._n_vocab,))

    def copy(self, src: SeqId, dst: SeqId, n_tokens: int) -> None:
        if not self.shape.is_unified:
            # Between streams seq_cp is deferred to the next decode and would miss a save before it.
            self.restore(dst, self.save(src))
            if self.shape.memory.can_trim:
                self.cut(dst, n_tokens)
            return
        C.llama_memory_seq_cp(self._memory, src, dst, 0, n_tokens)
        if self.shape.window and n_tokens == self._n_held(src):
            # a window's cells are not recycled while they are shared, so each has its own
            self.write_part(dst, self.read_part(src))

    def drop(self, seq_id: SeqId, n_keep: int) -> None:
        if self._pairing is not None and not n_keep:
            self._pairing.forget(seq_id)
        self.cut(seq_id, n_keep)

    def cut(self, seq_id: SeqId, n_keep: int) -> None:
        """``drop`` in the memory alone."""
        if self.shape.memory is MemoryKind.WINDOW and n_keep:
            # llama.cpp would cut and then compute with what is left of the window
            first = int(C.llama_memory_seq_pos_min(self._memory, seq_id))
            if first > max(0, n_keep - self.shape.window + 1):
                raise ModelError(f"sequence {seq_id} has no window before its token {n_keep}")
        if not C.llama_memory_seq_rm(self._memory, seq_id, n_keep, -1):
            raise ModelError(f"sequence {seq_id} can't be cut to {n_keep} tokens")

    def _n_held(self, seq_id: SeqId) -> int:
        return 1 + int(C.llama_memory_seq_pos_max(self._memory, seq_id))

    def save(self, seq_id: SeqId) -> memoryview:
        return self._save(seq_id, 0)

    def save_part(self, seq_id: SeqId) -> memoryview:
        return self._save(seq_id, PART_ONLY)

    def _save(self, seq_id: SeqId, flags: int) -> memoryview:
        data = self._read_state(seq_id, flags)
        if self._pairing is None:
            return data.data
        late = np.array([self._pairing.late(seq_id)], LATE)
        return np.concatenate([data, late.view(np.uint8)]).data

    def restore(self, seq_id: SeqId, data: memoryview) -> None:
        self._restore(seq_id, data, 0)

    def rewind(self, seq_id: SeqId, data: memoryview, n_tokens: int) -> None:
        late = self._restore(seq_id, data, PART_ONLY)
        self.cut(seq_id, n_tokens - (late != NO_TOKEN))

    def _restore(self, seq_id: SeqId, data: memoryview, flags: int) -> int:
        """Returns the late token that the state has."""
        if self._pairing is None:
            self._write_state(seq_id, data, flags)
            return NO_TOKEN
        late = int(np.frombuffer(data[-LATE.itemsize :], LATE)[0])
        self._write_state(seq_id, data[: -LATE.itemsize], flags)
        self._pairing.set_late(seq_id, late)
        return late

    def read_part(self, seq_id: SeqId) -> memoryview:
        """What can't be cut of the memory's state."""
        return self._read_state(seq_id, PART_ONLY).data

    def write_part(self, seq_id: SeqId, data: memoryview) -> None:
        """Put it back."""
        self._write_state(seq_id, data, PART_ONLY)

    def _read_state(self, seq_id: SeqId, flags: int) -> NDArray[np.uint8]:
        size = C.llama_state_seq_get_size_ext(self._context, seq_id, flags)
        buffer = np.empty(size, np.uint8)
        pointer = buffer.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if C.llama_state_seq_get_data_ext(self._context, pointer, size, seq_id, flags) != size:
            raise ModelError(f"the state of sequence {seq_id} could not be saved")
        return buffer

    def _write_state(self, seq_id: SeqId, data: memoryview, flags: int) -> None:
        view = np.frombuffer(data, np.uint8)
        pointer = view.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        size = len(data)
        if C.llama_state_seq_set_data_ext(self._context, pointer, size, seq_id, flags) != size:
            self.drop(seq_id, 0)
            raise BadState(f"a saved state of {size} bytes was refused")

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
        params.swa_full = True
        params.type_k = params.type_v = C.GGML_TYPE_F32
        params.flash_attn_type = FLASH_ATTN["off"]
    else:
        most = MAX_SEQ if _memory_kind(handle).can_trim else 16
        params.n_seq_max = options.n_seq or min(most, options.n_batch)
        params.n_ctx = options.n_cells or _auto_cells(handle, n_ctx)
        params.kv_unified = True
        params.swa_full = False
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
    # of the first layer; a hybrid's may have none
    heads_kv = int(C.llama_model_n_head_kv(handle)) or heads
    width = int(C.llama_model_n_embd(handle)) // heads * heads_kv
    per_cell = 4 * width * int(C.llama_model_n_layer(handle))  # f16, keys and values
    return max(n_ctx, min(4 * n_ctx, AUTO_CELLS_BYTES // max(1, per_cell)))


def _memory_kind(handle: C.llama_model_p) -> MemoryKind:
    if C.llama_model_is_recurrent(handle):
        return MemoryKind.RECURRENT
    if C.llama_model_is_hybrid(handle):
        return MemoryKind.HYBRID
    return MemoryKind.WINDOW if C.llama_model_n_swa(handle) > 0 else MemoryKind.FULL


def library_files() -> list[Path]:
    """The libraries that compute: llama.cpp's own and its back ends'."""
    folder = Path(C.__file__).parent / "lib"
    files = {file.resolve() for file in folder.iterdir() if file.name.startswith(("lib", "ggml"))}
    return sorted(file for file in files if file.is_file())


def system_info() -> str:
    """What of this machine llama.cpp makes use of."""
    _start_backend()
    info: bytes = C.llama_print_system_info()
    return info.decode("utf-8", "replace")


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
