"""Tiny models with random weights, one per kind of memory, with a real model's tokenizer.

Their replies are nonsense, but logits differ clearly between contexts and the state is computed
by the same code as a real model's of that architecture. The same seed gives the same file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray

N_EMBD = 64
N_FF = 128
N_HEAD = 2
HEAD = 32
WINDOW = 64
N_CTX = 32768
BLOCK = 32  # of a quantised row

Shape = tuple[int, ...]  # as ggml prints it: the length of a row first
Fill = Callable[[np.random.Generator, Shape], NDArray[np.float32]]


def _matrix(rng: np.random.Generator, shape: Shape, gain: float = 1.0) -> NDArray[np.float32]:
    """Keeps the scale of what it multiplies, times ``gain``."""
    scale = gain / math.sqrt(shape[0])
    return (scale * rng.standard_normal(shape[::-1])).astype(np.float32)


def _sharp(rng: np.random.Generator, shape: Shape) -> NDArray[np.float32]:
    """Queries, keys and logits: large enough to tell contexts apart."""
    return _matrix(rng, shape, gain=2.0)


def _kernel(rng: np.random.Generator, shape: Shape) -> NDArray[np.float32]:
    return _matrix(rng, shape, gain=1.0)


def _norm(rng: np.random.Generator, shape: Shape) -> NDArray[np.float32]:
    return (1.0 + 0.1 * rng.standard_normal(shape[::-1])).astype(np.float32)


def _decay(rng: np.random.Generator, shape: Shape) -> NDArray[np.float32]:
    """Negative: from a memory of a few tokens to one of hundreds."""
    return -np.exp(rng.uniform(-4.0, 0.0, shape[::-1])).astype(np.float32)


def _step(rng: np.random.Generator, shape: Shape) -> NDArray[np.float32]:
    return rng.uniform(-3.0, 0.0, shape[::-1]).astype(np.float32)


@dataclass(slots=True)
class Recipe:
    """What makes up a model: its metadata, without the architecture's prefix, and its tensors."""

    architecture: str
    fields: dict[str, Any] = field(default_factory=dict)
    embedding_gain: float = 8.0  # the root of N_EMBD: values of about 1
    tensors: dict[str, tuple[Shape, Fill]] = field(default_factory=dict)

    def add(self, layer: int, **shapes: tuple[Shape, Fill]) -> None:
        """Tensors of a layer, dots written as ``__``."""
        for name, tensor in shapes.items():
            self.tensors[f"blk.{layer}.{name.replace('__', '.')}"] = tensor


def _start(architecture: str, n_layers: int) -> Recipe:
    return Recipe(
        architecture,
        {
            "block_count": n_layers,
            "context_length": N_CTX,
            "embedding_length": N_EMBD,
            "feed_forward_length": N_FF,
            "attention.head_count": N_HEAD,
            "attention.head_count_kv": 1,
            "attention.key_length": HEAD,
            "attention.value_length": HEAD,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": HEAD,
            "rope.freq_base": 10000.0,
        },
    )


def _attention(recipe: Recipe, layer: int, *, q_parts: int = 1, has_norms: bool = True) -> None:
    n_kv = HEAD
    recipe.add(
        layer,
        attn_norm__weight=((N_EMBD,), _norm),
        attn_q__weight=((N_EMBD, N_HEAD * HEAD * q_parts), _sharp),
        attn_k__weight=((N_EMBD, n_kv), _sharp),
        attn_v__weight=((N_EMBD, n_kv), _matrix),
        attn_output__weight=((N_HEAD * HEAD, N_EMBD), _matrix),
    )
    if has_norms:
        recipe.add(
            layer,
            attn_q_norm__weight=((HEAD,), _norm),
            attn_k_norm__weight=((HEAD,), _norm),
        )


def _feed_forward(recipe: Recipe, layer: int, norm: str = "ffn_norm") -> None:
    recipe.add(
        layer,
        **{f"{norm}__weight": ((N_EMBD,), _norm)},
        ffn_gate__weight=((N_EMBD, N_FF), _matrix),
        ffn_up__weight=((N_EMBD, N_FF), _matrix),
        ffn_down__weight=((N_FF, N_EMBD), _matrix),
    )


def _experts(recipe: Recipe, layer: int, n_experts: int, n_ff: int) -> None:
    recipe.add(
        layer,
        ffn_gate_inp__weight=((N_EMBD, n_experts), _sharp),
        ffn_gate_exps__weight=((N_EMBD, n_ff, n_experts), _matrix),
        ffn_up_exps__weight=((N_EMBD, n_ff, n_experts), _matrix),
        ffn_down_exps__weight=((n_ff, N_EMBD, n_experts), _matrix),
        ffn_gate_inp_shexp__weight=((N_EMBD,), _kernel),
        ffn_gate_shexp__weight=((N_EMBD, n_ff), _matrix),
        ffn_up_shexp__weight=((N_EMBD, n_ff), _matrix),
        ffn_down_shexp__weight=((n_ff, N_EMBD), _matrix),
    )


def _ssm(recipe: Recipe, *, n_groups: int, n_heads: int, n_state: int, n_inner: int) -> None:
    recipe.fields |= {
        "ssm.conv_kernel": 4,
        "ssm.inner_size": n_inner,
        "ssm.state_size": n_state,
        "ssm.time_step_rank": n_heads,
        "ssm.group_count": n_groups,
    }


def _ssm_sizes(recipe: Recipe) -> tuple[int, ...]:
    """Widths of the inner layer and of a state, numbers of heads and of groups."""
    names = ("inner_size", "state_size", "time_step_rank", "group_count")
    return tuple(recipe.fields[f"ssm.{name}"] for name in names)


def _mamba2_layer(recipe: Recipe, layer: int) -> None:
    n_inner, n_state, n_heads, n_groups = _ssm_sizes(recipe)
    n_conv = n_inner + 2 * n_groups * n_state
    recipe.add(
        layer,
        attn_norm__weight=((N_EMBD,), _norm),
        ssm_in__weight=((N_EMBD, n_inner + n_conv + n_heads), _matrix),
        ssm_conv1d__weight=((4, n_conv), _kernel),
        ssm_conv1d__bias=((n_conv,), _step),
        ssm_dt__bias=((n_heads,), _step),
        ssm_a=((1, n_heads), _decay),
        ssm_d=((1, n_heads), _norm),
        ssm_norm__weight=((n_inner // n_groups, n_groups), _norm),
        ssm_out__weight=((n_inner, N_EMBD), _matrix),
    )


def _delta_net_layer(recipe: Recipe, layer: int) -> None:
    """The linear attention of Qwen3-Next and Qwen3.5, but for its inputs beta and alpha."""
    n_inner, n_state, n_heads, n_groups = _ssm_sizes(recipe)
    n_conv = n_inner + 2 * n_groups * n_state
    recipe.add(
        layer,
        attn_norm__weight=((N_EMBD,), _norm),
        attn_qkv__weight=((N_EMBD, n_conv), _matrix),
        attn_gate__weight=((N_EMBD, n_inner), _matrix),
        ssm_conv1d__weight=((4, n_conv), _kernel),
        ssm_dt__bias=((n_heads,), _step),
        ssm_a=((n_heads,), _decay),
        ssm_norm__weight=((n_inner // n_heads,), _norm),
        ssm_out__weight=((n_inner, N_EMBD), _matrix),
    )


def llama() -> Recipe:
    recipe = _start("llama", 4)
    for layer in range(4):
        _attention(recipe, layer, has_norms=False)
        _feed_forward(recipe, layer)
    return recipe


def qwen3() -> Recipe:
    recipe = _start("qwen3", 4)
    for layer in range(4):
        _attention(recipe, layer)
        _feed_forward(recipe, layer)
    return recipe


def gemma3() -> Recipe:
    """Every third layer attends to everything, the others to a window."""
    recipe = _start("gemma3", 6)
    recipe.embedding_gain = 1.0  # the model itself multiplies by the root of N_EMBD
    recipe.fields |= {
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": 3,
    }
    for layer in range(6):
        _attention(recipe, layer)
        _feed_forward(recipe, layer)
        recipe.add(
            layer,
            post_attention_norm__weight=((N_EMBD,), _norm),
            post_ffw_norm__weight=((N_EMBD,), _norm),
        )
    return recipe


def mamba2() -> Recipe:
    recipe = _start("mamba2", 4)
    for name in ("head_count", "head_count_kv", "key_length", "value_length"):
        del recipe.fields[f"attention.{name}"]
    recipe.fields["feed_forward_length"] = 0
    _ssm(recipe, n_groups=1, n_heads=4, n_state=32, n_inner=2 * N_EMBD)
    for layer in range(4):
        _mamba2_layer(recipe, layer)
    return recipe


def granitehybrid() -> Recipe:
    recipe = _start("granitehybrid", 4)
    recipe.fields["attention.head_count_kv"] = [0, 1, 0, 1]
    _ssm(recipe, n_groups=1, n_heads=4, n_state=32, n_inner=2 * N_EMBD)
    for layer, n_kv in enumerate(recipe.fields["attention.head_count_kv"]):
        if n_kv:
            _attention(recipe, layer, has_norms=False)
        else:
            _mamba2_layer(recipe, layer)
        _feed_forward(recipe, layer)
    return recipe


def lfm2() -> Recipe:
    recipe = _start("lfm2", 4)
    recipe.fields |= {"attention.head_count_kv": [0, 1, 0, 1], "shortconv.l_cache": 3}
    for layer, n_kv in enumerate(recipe.fields["attention.head_count_kv"]):
        if n_kv:
            _attention(recipe, layer)
        else:
            recipe.add(
                layer,
                attn_norm__weight=((N_EMBD,), _norm),
                shortconv__conv__weight=((3, N_EMBD), _kernel),
                shortconv__in_proj__weight=((N_EMBD, 3 * N_EMBD), _matrix),
                shortconv__out_proj__weight=((N_EMBD, N_EMBD), _matrix),
            )
        _feed_forward(recipe, layer)
    return recipe


def qwen35() -> Recipe:
    recipe = _start("qwen35", 4)
    recipe.fields |= {"rope.dimension_sections": [6, 5, 5, 0], "full_attention_interval": 2}
    _ssm(recipe, n_groups=2, n_heads=4, n_state=32, n_inner=128)
    for layer in range(4):
        if layer % 2:
            _attention(recipe, layer, q_parts=2)
        else:
            _delta_net_layer(recipe, layer)
            recipe.add(
                layer,
                ssm_beta__weight=((N_EMBD, 4), _matrix),
                ssm_alpha__weight=((N_EMBD, 4), _matrix),
            )
        _feed_forward(recipe, layer, norm="post_attention_norm")
    return recipe


def qwen3next() -> Recipe:
    recipe = _start("qwen3next", 4)
    recipe.fields |= {
        "full_attention_interval": 2,
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_feed_forward_length": 64,
        "expert_shared_feed_forward_length": 64,
    }
    _ssm(recipe, n_groups=2, n_heads=4, n_state=32, n_inner=128)
    for layer in range(4):
        if layer % 2:
            _attention(recipe, layer, q_parts=2)
        else:
            _delta_net_layer(recipe, layer)
            recipe.add(layer, ssm_ba__weight=((N_EMBD, 8), _matrix))
        recipe.add(layer, post_attention_norm__weight=((N_EMBD,), _norm))
        _experts(recipe, layer, n_experts=4, n_ff=64)
    return recipe


RECIPES: dict[str, Callable[[], Recipe]] = {
    each.__name__: each
    for each in (llama, qwen3, gemma3, mamba2, granitehybrid, lfm2, qwen35, qwen3next)
}


def write_tiny(
    name: str, tokenizer: Path, target: Path, chat_template: str | None = None, seed: int = 1
) -> Path:
    """Write the model ``name`` of ``RECIPES`` with the tokenizer of another GGUF."""
    recipe = RECIPES[name]()
    writer = GGUFWriter(target, recipe.architecture)
    for key, value in recipe.fields.items():
        _add_field(writer, f"{recipe.architecture}.{key}", value)
    n_vocab = _copy_tokenizer(GGUFReader(tokenizer), writer, chat_template)
    norm = "token_embd_norm" if name == "lfm2" else "output_norm"
    embedding = partial(_matrix, gain=recipe.embedding_gain)
    outer: dict[str, tuple[Shape, Fill]] = {
        "token_embd.weight": ((N_EMBD, n_vocab), embedding),
        f"{norm}.weight": ((N_EMBD,), _norm),
        "output.weight": ((N_EMBD, n_vocab), _sharp),
    }
    rng = np.random.default_rng(seed)
    for tensor, (shape, fill) in (outer | recipe.tensors).items():
        _add_tensor(writer, tensor, fill(rng, shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add_tensor(writer: GGUFWriter, name: str, data: NDArray[np.float32]) -> None:
    """Feed-forward matrices and the embedding are quantised, as in the files people use. The rest
    is not: rounding what enters them would hide small differences between two computations."""
    is_quantised = "ffn" in name or name.startswith("token_embd.")
    if not is_quantised or data.ndim < 2 or data.shape[-1] % BLOCK:
        writer.add_tensor(name, data)
        return
    kind = GGMLQuantizationType.Q8_0
    writer.add_tensor(name, quantize(data, kind), raw_dtype=kind)


def _add_field(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def _copy_tokenizer(reader: GGUFReader, writer: GGUFWriter, chat_template: str | None) -> int:
    """Returns the size of the vocabulary."""
    for name, entry in reader.fields.items():
        if not name.startswith("tokenizer."):
            continue
        kind = entry.types[0]
        item_kind = entry.types[-1] if kind == GGUFValueType.ARRAY else None
        value = entry.contents()
        if name == "tokenizer.chat_template" and chat_template is not None:
            value = chat_template
        writer.add_key_value(name, value, kind, item_kind)
    return len(reader.fields["tokenizer.ggml.tokens"].contents())
