"""What the saved states of a loaded model depend on."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ratoon.disk.fingerprint import Fingerprint, files_digest
from ratoon.engine.llama import LlamaModel, library_files, system_info
from ratoon.weights import weight_files


def fingerprint(model: LlamaModel, memo_folder: Path) -> Fingerprint:
    """Reads the model's files to the last byte, unless ``memo_folder`` knows their digests.

    Raises OSError.
    """
    options = model.options
    libraries = files_digest(library_files(), memo_folder)
    machine = hashlib.blake2b(system_info().encode(), digest_size=8).hexdigest()
    device = f"{options.n_gpu_layers} layers on the GPU"
    if options.is_exact:
        device += f", {options.n_threads} threads"
    return Fingerprint(
        model=files_digest(weight_files(model.path), memo_folder),
        build=f"{libraries} {machine}",
        kv_type="f32" if options.is_exact else options.kv_type,
        flash_attn="off" if options.is_exact else options.flash_attn,
        memory=model.shape.memory.value,
        device=device,
        rope=_rope(model),
        is_exact=options.is_exact,
        label=f"{model.name} {options.kv_type}{' exact' if options.is_exact else ''}",
    )


def _rope(model: LlamaModel) -> str:
    """All else is in the model's file; but which of two sets of factors llama.cpp takes depends on
    whether the window is larger than the one the model was first trained with."""
    name = f"{model.metadata('general.architecture')}.rope.scaling.original_context_length"
    original = model.metadata(name)
    return "long" if original.isdigit() and model.n_ctx_seq > int(original) else ""
