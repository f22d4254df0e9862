#!/usr/bin/env python3
"""Goldens of the model families: logits of tiny random checkpoints by Hugging Face transformers, F32, eager attention.

    tools/goldens/families.py [--check] [--only NAME]

writes tests/goldens/families/NAME.json (config.json of the checkpoint, and name, shape, mean and deviation of every
tensor, from which tiny.py and the C++ tests make the same weights) and NAME.npy (logits f32 [64, vocab] of the tokens
`tiny.token_ids`). Every run checks transformers against itself: 32 tokens at once and 32 decode steps against one pass.
The configurations are those of spec/models.md 12.1. Needs requirements.txt.
"""

import argparse
import json
import sys

import numpy as np

import tiny
from python_env import ROOT, prefer

prefer("torch", "transformers")
OUT = ROOT / "tests" / "goldens" / "families"
TOKENS, PROMPT, VOCAB, SEED = 64, 32, 300, 4
BAR = 2e-5  # of the logit range: transformers' prefill and decode against one pass, and one machine against another

BASE = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096,
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
QWEN3 = BASE | {"head_dim": 32, "rms_norm_eps": 1e-6, "attention_bias": False}
MOE = QWEN3 | {
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [1],
    "decoder_sparse_step": 1, "num_hidden_layers": 4,
}  # fmt: skip
GLM = {k: v for k, v in BASE.items() if k not in ("head_dim", "num_key_value_heads")} | {
    "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "n_shared_experts": 1, "routed_scaling_factor": 1.8, "norm_topk_prob": True, "n_group": 1, "topk_group": 1,
    "mlp_layer_types": ["dense", "sparse", "sparse"], "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip


def default(theta: float) -> dict:
    return {"rope_type": "default", "rope_theta": theta}


def linear(theta: float, factor: float) -> dict:
    return {"rope_type": "linear", "rope_theta": theta, "factor": factor}


def yarn(theta: float, **more) -> dict:
    found = {"rope_type": "yarn", "rope_theta": theta, "factor": 4.0, "original_max_position_embeddings": 1024}
    return found | more


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
GEMMA = {
    "num_hidden_layers": 7, "sliding_window": 8, "query_pre_attn_scalar": 24, "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh", "layer_types": ["sliding_attention"] * 5 + ["full_attention"]
    + ["sliding_attention"],
}  # fmt: skip


def gemma(full: dict) -> dict:
    return BASE | GEMMA | {"rope_parameters": {"sliding_attention": default(1e4), "full_attention": full}}


# name: model_type, configuration
CASES = {
    "llama": ("llama", BASE | {"rms_norm_eps": 1e-5, "rope_parameters": default(1e4)}),
    "llama3_untied": ("llama", BASE | {"rms_norm_eps": 1e-5, "rope_parameters": LLAMA3, "tie_word_embeddings": False}),
    "llama_linear_biases": (
        "llama",
        BASE | {"rms_norm_eps": 1e-5, "rope_parameters": linear(1e4, 4.0), "attention_bias": True},
    ),
    "qwen2": ("qwen2", BASE | {"rms_norm_eps": 1e-6, "rope_parameters": default(1e6)}),
    "qwen2_yarn_untied": (
        "qwen2",
        BASE | {"rms_norm_eps": 1e-6, "rope_parameters": yarn(1e6), "tie_word_embeddings": False},
    ),
    "qwen3": ("qwen3", QWEN3 | {"rope_parameters": default(1e6)}),
    "qwen3_untied_yarn": (
        "qwen3",
        QWEN3 | {"rope_parameters": yarn(1e6, attention_factor=1.25), "tie_word_embeddings": False},
    ),
    "qwen3_moe": ("qwen3_moe", MOE | {"rope_parameters": default(1e6), "norm_topk_prob": True}),
    "qwen3_moe_raw": (
        "qwen3_moe",
        MOE | {"rope_parameters": default(1e6), "norm_topk_prob": False, "tie_word_embeddings": False},
    ),
    "gemma3": ("gemma3_text", gemma(default(1e6))),
    "gemma3_linear": ("gemma3_text", gemma(linear(1e6, 8.0)) | {"query_pre_attn_scalar": 16}),
    "glm4_moe_lite": ("glm4_moe_lite", GLM | {"rope_parameters": default(1e6)}),
    "glm4_moe_lite_groups": (
        "glm4_moe_lite",
        GLM | {"rope_parameters": default(1e6), "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3},
    ),
    "glm4_moe_lite_yarn": (
        "glm4_moe_lite",
        GLM | {"rope_parameters": yarn(1e4, mscale=1.0, mscale_all_dim=1.0, beta_fast=32.0, beta_slow=1.0)},
    ),
}


def law(model_type: str, name: str, shape: list[int]) -> tuple[float, float]:
    """Mean and deviation of a tensor: nothing that would be a constant by default may stay one."""
    if name.endswith("norm.weight"):
        return (0.0 if model_type.startswith("gemma") else 1.0), 0.15
    if name.endswith("e_score_correction_bias"):
        return 0.0, 0.2
    if name.endswith(".bias"):
        return 0.0, 0.5
    if "embed_tokens" in name:
        return 0.0, 1.0
    gain = 1.5 if any(part in name for part in ("q_proj", "k_proj", "q_b_proj", "kv_b_proj", "mlp.gate.")) else 1.0
    return 0.0, gain * shape[-1] ** -0.5


def hub_shapes(model) -> dict[str, list[int]]:
    """Tensors as hub checkpoints store them: experts one by one, no copy of a tied head."""
    shapes = {}
    for name, t in model.state_dict().items():
        shape = list(t.shape)
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if name.endswith("experts.gate_up_proj") or name.endswith("experts.down_proj"):
            stem, kind = name.rsplit(".", 1)
            for e in range(shape[0]):
                if kind == "down_proj":
                    shapes[f"{stem}.{e}.down_proj.weight"] = shape[1:]
                else:
                    for part in ("gate_proj", "up_proj"):
                        shapes[f"{stem}.{e}.{part}.weight"] = [shape[1] // 2, shape[2]]
        else:
            shapes[name] = shape
    return shapes


def state(model, tensors: dict[str, np.ndarray]) -> dict:
    """Back to the names of the running model."""
    import torch

    out = {}
    for name, t in model.state_dict().items():
        stem = name.rsplit(".", 1)[0]
        if name == "lm_head.weight" and name not in tensors:
            found = tensors["model.embed_tokens.weight"]
        elif name.endswith("experts.gate_up_proj"):
            both = [[tensors[f"{stem}.{e}.{p}.weight"] for p in ("gate_proj", "up_proj")] for e in range(len(t))]
            found = np.stack([np.concatenate(b) for b in both])
        elif name.endswith("experts.down_proj"):
            found = np.stack([tensors[f"{stem}.{e}.down_proj.weight"] for e in range(len(t))])
        else:
            found = tensors[name]
        out[name] = torch.from_numpy(found.copy())
    return out


def logits_of(model, ids: list[int]) -> np.ndarray:
    """One pass over all tokens, checked against a prompt and decode steps."""
    import torch

    with torch.no_grad():
        whole = model(torch.tensor([ids])).logits[0]
        step = model(torch.tensor([ids[:PROMPT]]), use_cache=True)
        rows = [step.logits[0]]
        for token in ids[PROMPT:]:
            step = model(torch.tensor([[token]]), cache=step.cache, use_cache=True)
            rows.append(step.logits[0])
    span = float((whole.max(1).values - whole.min(1).values).min())
    off = float((torch.cat(rows) - whole).abs().max()) / span
    if off > BAR:
        raise SystemExit(f"transformers: decode differs from one pass by {off:.1e} of the range, wanted <= {BAR}")
    return whole.float().numpy()


def make(name: str) -> tuple[dict, np.ndarray]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, fields = CASES[name]
    config = AutoConfig.for_model(model_type, **fields)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    shapes = hub_shapes(model)
    laws = {n: [shape, *law(model_type, n, shape)] for n, shape in shapes.items()}
    tensors = {n: tiny.values(SEED, n, *of) for n, of in laws.items()}
    model.load_state_dict(state(model, tensors), strict=True)
    logits = logits_of(model, tiny.token_ids(SEED, TOKENS, VOCAB))
    published = {"architectures": [type(model).__name__], "model_type": model_type, "dtype": "float32"} | fields
    return {"seed": SEED, "config": published, "tensors": laws}, logits


def write(name: str, case: dict, logits: np.ndarray) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    tensors = ",\n  ".join(f"{json.dumps(n)}: {json.dumps(of)}" for n, of in case["tensors"].items())
    text = f'{{"seed": {case["seed"]}, "config": {json.dumps(case["config"])},\n "tensors": {{\n  {tensors}}}}}\n'
    (OUT / f"{name}.json").write_text(text)
    np.save(OUT / f"{name}.npy", np.ascontiguousarray(logits))


def same(name: str, case: dict, logits: np.ndarray) -> bool:
    if json.loads((OUT / f"{name}.json").read_text()) != json.loads(json.dumps(case)):
        print(f"{name}.json: stored and made differ")
        return False
    stored = np.load(OUT / f"{name}.npy")
    off = float(np.abs(stored - logits).max() / (logits.max(1) - logits.min(1)).min())
    if off > BAR:
        print(f"{name}.npy: stored and made differ by {off:.1e} of the logit range, wanted <= {BAR}")
    return off <= BAR


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, compare with what is stored")
    parser.add_argument("--only", choices=CASES)
    args = parser.parse_args()
    good = True
    for name in [args.only] if args.only else CASES:
        case, logits = make(name)
        if args.check:
            good = same(name, case, logits) and good
        else:
            write(name, case, logits)
            print(f"{name}: {len(case['tensors'])} tensors, logits {list(logits.shape)}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
