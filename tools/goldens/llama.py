"""A plain PyTorch Llama on the weights of a GGUF file, all in one dtype (F32): the model oracle.

Written from the published architecture, not from the engine: RMSNorm, interleaved RoPE as GGUF `llama` files
want it (pairs (2i, 2i+1), angle = f32(position) * f32(frequency)), grouped-query attention, SwiGLU, tied head.
`check_against_transformers` runs Hugging Face's LlamaForCausalLM on the same weights with the rows of q and k
put back in the half-split order, and returns both logits.
"""

import pathlib
from typing import Any

import gguf
import numpy as np
import torch


class Weights:
    """Every tensor of a GGUF file dequantised, plus the few numbers of its header that the forward needs."""

    def __init__(self, path: pathlib.Path, dtype: torch.dtype = torch.float32):
        reader = gguf.GGUFReader(str(path))
        self.fields = {name: field for name, field in reader.fields.items()}
        arch = self.value("general.architecture")
        if arch != "llama":
            raise SystemExit(f"{path}: architecture '{arch}', wanted 'llama'")
        self.layers = int(self.value("llama.block_count"))
        self.hidden = int(self.value("llama.embedding_length"))
        self.heads = int(self.value("llama.attention.head_count"))
        self.kv_heads = int(self.value("llama.attention.head_count_kv"))
        self.head_dim = self.hidden // self.heads
        self.ffn = int(self.value("llama.feed_forward_length"))
        self.eps = float(self.value("llama.attention.layer_norm_rms_epsilon"))
        self.theta = float(self.value("llama.rope.freq_base"))
        self.tensors = {}
        for t in reader.tensors:
            rows = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
            self.tensors[t.name] = torch.from_numpy(rows.copy()).to(dtype)

    def value(self, key: str) -> Any:
        return self.fields[key].contents()

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name + ".weight"]

    @property
    def head(self) -> torch.Tensor:
        return self.tensors.get("output.weight", self.tensors["token_embd.weight"])


def rms_norm(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def rope(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotates x [tokens, heads, dim] by pairs (2i, 2i+1)."""
    dim = x.shape[-1]
    freq = torch.tensor([theta ** (-2.0 * i / dim) for i in range(dim // 2)], dtype=torch.float64).float()
    angle = positions.float()[:, None] * freq[None, :]  # an f32 product, as the published models were trained with
    cos, sin = torch.cos(angle).to(x.dtype)[:, None, :], torch.sin(angle).to(x.dtype)[:, None, :]
    u, v = x[..., 0::2], x[..., 1::2]
    return torch.stack((u * cos - v * sin, v * cos + u * sin), dim=-1).flatten(-2)


class Llama:
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
        cache = []
        for n in range(w.layers):
            b = f"blk.{n}."
            h = rms_norm(x, w[b + "attn_norm"], w.eps)
            q = rope((h @ w[b + "attn_q"].T).view(len(ids), w.heads, w.head_dim), pos, w.theta)
            k = rope((h @ w[b + "attn_k"].T).view(len(ids), w.kv_heads, w.head_dim), pos, w.theta)
            v = (h @ w[b + "attn_v"].T).view(len(ids), w.kv_heads, w.head_dim)
            if past:
                k, v = torch.cat((self.cache[n][0], k)), torch.cat((self.cache[n][1], v))
            cache.append((k, v))
            x = x + self.attention(q, k, v, pos) @ w[b + "attn_output"].T
            h = rms_norm(x, w[b + "ffn_norm"], w.eps)
            gate = torch.nn.functional.silu(h @ w[b + "ffn_gate"].T)
            x = x + (gate * (h @ w[b + "ffn_up"].T)) @ w[b + "ffn_down"].T
        self.cache = cache
        return rms_norm(x, w["output_norm"], w.eps) @ w.head.T

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        group = self.w.heads // self.w.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)  # head a reads KV head a // group
        scores = torch.einsum("qhd,khd->hqk", q, k) * self.w.head_dim**-0.5
        future = torch.arange(k.shape[0])[None, :] > pos[:, None]
        p = torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1)
        return torch.einsum("hqk,khd->qhd", p, v).flatten(1)


def half_split_rows(w: torch.Tensor, heads: int) -> torch.Tensor:
    """Undoes the converter's row order: GGUF row h*D + 2i + s is the checkpoint's row h*D + s*D/2 + i."""
    dim = w.shape[0] // heads
    return w.view(heads, dim // 2, 2, w.shape[1]).transpose(1, 2).reshape(w.shape)


@torch.no_grad()
def transformers_logits(w: Weights, ids: list[int]) -> torch.Tensor:
    """The same tokens through Hugging Face's LlamaForCausalLM (F32, eager attention)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=w["token_embd"].shape[0], hidden_size=w.hidden, intermediate_size=w.ffn,
        num_hidden_layers=w.layers, num_attention_heads=w.heads, num_key_value_heads=w.kv_heads,
        rms_norm_eps=w.eps, max_position_embeddings=8192, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": w.theta}, attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config).float().eval()
    state = {"model.embed_tokens": w["token_embd"], "model.norm": w["output_norm"], "lm_head": w.head}
    names = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    rows = {"attn_q": w.heads, "attn_k": w.kv_heads}
    for n in range(w.layers):
        for ours, theirs in names.items():
            t = w[f"blk.{n}.{ours}"]
            state[f"model.layers.{n}.{theirs}"] = half_split_rows(t, rows[ours]) if ours in rows else t
    model.load_state_dict({k + ".weight": v for k, v in state.items()}, strict=True)
    return model(torch.tensor([ids])).logits[0]
