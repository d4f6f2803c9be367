"""Cut a real GGUF model down to a few layers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gguf import GGUFReader, GGUFValueType, GGUFWriter

_LAYER = re.compile(r"blk\.(\d+)\.")
# what the writer puts down itself
_WRITTEN = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture"}


def cut_layers(
    source: Path,
    target: Path,
    n_layers: int = 4,
    chat_template: str | None = None,
    n_ctx_train: int | None = None,
) -> Path:
    """Copy a GGUF with its first ``n_layers`` layers only: same tokenizer, real shapes, fast, and
    nonsense in its replies. Replaces the chat template and the trained length if they are given."""
    reader = GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    changed: dict[str, Any] = {f"{architecture}.block_count": n_layers}
    if chat_template is not None:
        changed["tokenizer.chat_template"] = chat_template
    if n_ctx_train is not None:
        changed[f"{architecture}.context_length"] = n_ctx_train
    writer = GGUFWriter(target, architecture)
    _copy_fields(reader, writer, changed)
    for tensor in reader.tensors:
        layer = _LAYER.match(tensor.name)
        if layer is None or int(layer[1]) < n_layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _copy_fields(reader: GGUFReader, writer: GGUFWriter, changed: dict[str, Any]) -> None:
    for name, field in reader.fields.items():
        if name in _WRITTEN:
            continue
        kind = field.types[0]
        item_kind = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, changed.pop(name, None) or field.contents(), kind, item_kind)
    if "tokenizer.chat_template" in changed:
        writer.add_chat_template(changed["tokenizer.chat_template"])
