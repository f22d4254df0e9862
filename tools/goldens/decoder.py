"""A plain PyTorch decoder on the weights of a GGUF file, all in one dtype (F32): the oracle of whole models.

Written from the published architectures, not from the engine: RMSNorm, rotary pairs (2i, 2i+1) as GGUF `llama` files
want them or (i, i+d/2) elsewhere, angle = f32(position) * f32(frequency), grouped-query attention, gated MLP.
`qwen2` adds biases to q, k and v; `gemma3` norms q and k, norms each branch before it is added, sees a window but in
every sixth layer, scales its embedding by sqrt(hidden) and gates with GELU.
`transformers_logits` runs Hugging Face's model of that family on the same weights.
"""

import pathlib
from typing import Any

import gguf
import numpy as np
import torch

KINDS = ("llama", "qwen2", "gemma3")


class Weights:
    """Every tensor of a GGUF file dequantised, plus the few numbers of its header that the forward needs."""

    def __init__(self, path: pathlib.Path, dtype: torch.dtype = torch.float32):
        reader = gguf.GGUFReader(str(path))
        self.fields = {name: field for name, field in reader.fields.items()}
        self.kind = self.value("general.architecture")
        if self.kind not in KINDS:
            raise SystemExit(f"{path}: architecture '{self.kind}', wanted one of {', '.join(KINDS)}")
        of = lambda key: self.value(f"{self.kind}.{key}")
        self.layers = int(of("block_count"))
        self.hidden = int(of("embedding_length"))
        self.heads = int(of("attention.head_count"))
        self.kv_heads = int(of("attention.head_count_kv"))
        own = f"{self.kind}.attention.key_length" in self.fields
        self.head_dim = int(of("attention.key_length")) if own else self.hidden // self.heads
        self.ffn = int(of("feed_forward_length"))
        self.eps = float(of("attention.layer_norm_rms_epsilon"))
        self.theta = float(of("rope.freq_base"))
        self.gemma = self.kind == "gemma3"
        self.window = int(of("attention.sliding_window")) if self.gemma else 0
        self.tensors = {}
        for t in reader.tensors:
            rows = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
            self.tensors[t.name] = torch.from_numpy(rows.copy()).to(dtype)

    def value(self, key: str) -> Any:
        return self.fields[key].contents()

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name + ".weight"]

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self[name], self.tensors.get(name + ".bias"))

    def windowed(self, layer: int) -> bool:
        return self.gemma and (layer + 1) % 6 != 0

    @property
    def head(self) -> torch.Tensor:
        return self.tensors.get("output.weight", self.tensors["token_embd.weight"])


def rms_norm(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def rope(x: torch.Tensor, positions: torch.Tensor, theta: float, neighbours: bool) -> torch.Tensor:
    """Rotates x [tokens, heads, dim] by pairs (2i, 2i+1), or (i, i + dim/2)."""
    dim = x.shape[-1]
    freq = torch.tensor([theta ** (-2.0 * i / dim) for i in range(dim // 2)], dtype=torch.float64).float()
    angle = positions.float()[:, None] * freq[None, :]  # an f32 product, as the published models were trained with
    cos, sin = torch.cos(angle).to(x.dtype)[:, None, :], torch.sin(angle).to(x.dtype)[:, None, :]
    u, v = (x[..., 0::2], x[..., 1::2]) if neighbours else x.chunk(2, dim=-1)
    turned = (u * cos - v * sin, v * cos + u * sin)
    return torch.stack(turned, dim=-1).flatten(-2) if neighbours else torch.cat(turned, dim=-1)


class Decoder:
    """Keeps K and V of every layer, so that `forward` may be called with a prompt and then token by token."""

    def __init__(self, weights: Weights):
        self.w = weights
        self.cache: list[tuple[torch.Tensor, torch.Tensor]] = []

    def reset(self) -> None:
        self.cache = []

    @torch.no_grad()
    def forward(self, ids: list[int]) -> torch.Tensor:
        """Logits [len(ids), vocab] of tokens that follow the ones already forwarded."""
        w = self.w
        past = self.cache[0][0].shape[0] if self.cache else 0
        pos = torch.arange(past, past + len(ids))
        x = w["token_embd"][torch.tensor(ids, dtype=torch.long)]
        if w.gemma:
            x = x * torch.tensor(float(w.hidden)).sqrt()
        cache, act = [], torch.nn.functional.silu
        if w.gemma:
            act = lambda z: torch.nn.functional.gelu(z, approximate="tanh")
        for n in range(w.layers):
            b = f"blk.{n}."
            after = lambda name, y: rms_norm(y, w[b + name], w.eps) if w.gemma else y
            h = rms_norm(x, w[b + "attn_norm"], w.eps)
            q, k, v = self.project(n, h, pos)
            if past:
                k, v = torch.cat((self.cache[n][0], k)), torch.cat((self.cache[n][1], v))
            cache.append((k, v))
            o = self.attention(q, k, v, pos, w.window if w.windowed(n) else 0)
            x = x + after("post_attention_norm", w.linear(b + "attn_output", o))
            h = rms_norm(x, w[b + "ffn_norm"], w.eps)
            y = w.linear(b + "ffn_down", act(w.linear(b + "ffn_gate", h)) * w.linear(b + "ffn_up", h))
            x = x + after("post_ffw_norm", y)
        self.cache = cache
        return rms_norm(x, w["output_norm"], w.eps) @ w.head.T

    def project(self, n: int, h: torch.Tensor, pos: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v [tokens, heads, dim] of layer n, normed and rotated."""
        w, b = self.w, f"blk.{n}."
        q, k, v = (w.linear(b + name, h).unflatten(1, (-1, w.head_dim)) for name in ("attn_q", "attn_k", "attn_v"))
        if w.gemma:
            q, k = rms_norm(q, w[b + "attn_q_norm"], w.eps), rms_norm(k, w[b + "attn_k_norm"], w.eps)
        theta = 1e4 if w.windowed(n) else w.theta
        return rope(q, pos, theta, w.kind == "llama"), rope(k, pos, theta, w.kind == "llama"), v

    def attention(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pos: torch.Tensor, window: int
    ) -> torch.Tensor:
        group = self.w.heads // self.w.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)  # head a reads KV head a // group
        scores = torch.einsum("qhd,khd->hqk", q, k) * self.w.head_dim**-0.5
        keys = torch.arange(k.shape[0])[None, :]
        hidden = keys > pos[:, None]
        if window:
            hidden = hidden | (pos[:, None] - keys >= window)
        p = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
        return torch.einsum("hqk,khd->qhd", p, v).flatten(1)


def half_split_rows(w: torch.Tensor, heads: int) -> torch.Tensor:
    """Undoes the converter's row order: GGUF row h*D + 2i + s is the checkpoint's row h*D + s*D/2 + i."""
    dim = w.shape[0] // heads
    return w.view(heads, dim // 2, 2, w.shape[1]).transpose(1, 2).reshape(w.shape)


def transformers_config(w: Weights) -> dict:
    common = {
        "vocab_size": w["token_embd"].shape[0], "hidden_size": w.hidden, "intermediate_size": w.ffn,
        "num_hidden_layers": w.layers, "num_attention_heads": w.heads, "num_key_value_heads": w.kv_heads,
        "head_dim": w.head_dim, "rms_norm_eps": w.eps, "max_position_embeddings": 8192, "tie_word_embeddings": False,
    }  # fmt: skip
    plain = lambda theta: {"rope_type": "default", "rope_theta": theta}
    if not w.gemma:
        return common | {"rope_parameters": plain(w.theta)}
    kinds = ["sliding_attention" if w.windowed(n) else "full_attention" for n in range(w.layers)]
    return common | {
        "query_pre_attn_scalar": w.head_dim, "sliding_window": w.window, "layer_types": kinds,
        "rope_parameters": {"sliding_attention": plain(1e4), "full_attention": plain(w.theta)},
    }  # fmt: skip


@torch.no_grad()
def transformers_logits(w: Weights, ids: list[int]) -> torch.Tensor:
    """The same tokens through Hugging Face's model (F32, eager attention)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type = {"gemma3": "gemma3_text"}.get(w.kind, w.kind)
    config = AutoConfig.for_model(model_type, **transformers_config(w))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    off = 1.0 if w.gemma else 0.0  # their norms multiply by 1 + w
    state = {
        "model.embed_tokens.weight": w["token_embd"], "model.norm.weight": w["output_norm"] - off,
        "lm_head.weight": w.head,
    }  # fmt: skip
    names = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    if w.gemma:
        names |= {
            "ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm", "attn_q_norm": "self_attn.q_norm",
            "attn_k_norm": "self_attn.k_norm",
        }  # fmt: skip
    rows = {"attn_q": w.heads, "attn_k": w.kv_heads} if w.kind == "llama" else {}
    for name, t in w.tensors.items():
        if not name.startswith("blk."):
            continue
        _, n, role, kind = name.split(".")
        if role in rows:
            t = half_split_rows(t, rows[role])
        elif role.endswith("norm"):
            t = t - off
        state[f"model.layers.{n}.{names[role]}.{kind}"] = t
    model.load_state_dict(state, strict=True)
    return model(torch.tensor([ids])).logits[0]
