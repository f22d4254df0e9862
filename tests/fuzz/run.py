#!/usr/bin/env python3
"""Runs the fuzz targets, two at a time, from seeds made here. Standard library only.

    run.py BUILD SECONDS [TARGET ...]

BUILD holds tests/fuzz/fuzz_TARGET and tests/tiny_model; inputs found are kept in BUILD/corpus/TARGET and tried first
next time, inputs that fail in BUILD/failures. Exit status 1 when a target failed."""
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/malformed"))
from folder import CONFIG, files_of  # noqa: E402
from gguf_file import Gguf  # noqa: E402

TARGETS = ["gguf", "safetensors", "hf_config", "tokenizer_json", "jinja", "plan"]
AT_ONCE = 2
LIMITS = ["-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=0", "-verbosity=0"]
PLANS = ["", "dense", "quest(budget=64,dense_layers=1)", "snapkv(budget=96,sink=4,recent=32)+kivi(group=16)+quest",
         "streamingllm(budget=64,sink=4)+fp8(format=e5m2)", "snapkv(budget=50%)+fp8+quest(budget=48)", "kivi(bits=2)"]
CONFIGS = [{"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "mlp_only_layers": [1], "decoder_sparse_step": 2, "norm_topk_prob": True},
           {"model_type": "gemma3_text", "sliding_window": 8, "rope_local_base_freq": 10000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8}, "query_pre_attn_scalar": 16},
           {"model_type": "glm4_moe_lite", "n_routed_experts": 8, "num_experts_per_tok": 2, "kv_lora_rank": 32,
            "moe_intermediate_size": 32, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16},
           {"rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4, "beta_fast": 32}},
           {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}}]


def seeds(build):
    """Target -> inputs that are well formed."""
    model = build / "seed.gguf"
    subprocess.run([build / "tests/tiny_model", model, "--small"], check=True)
    gguf = Gguf(model.read_bytes())
    pipelines = json.loads((ROOT / "tests/goldens/text/pipelines.json").read_text())
    folders = [files_of(gguf, p) for p in pipelines.values()]
    configs = [json.dumps(dict(CONFIG, **c)).encode() for c in [{}] + CONFIGS]
    templates = [source.encode() for name in ["templates", "template_models"]
                 for source in json.loads((ROOT / f"tests/goldens/text/{name}.json").read_text())["sources"]]
    return {"gguf": [gguf.raw], "safetensors": [folders[0]["model.safetensors"]], "hf_config": configs,
            "tokenizer_json": [f["tokenizer.json"] for f in folders], "jinja": templates,
            "plan": [p.encode() for p in PLANS]}


def fuzz(build, target, inputs, seconds):
    corpus, failures = build / "corpus" / target, build / "failures"
    corpus.mkdir(parents=True, exist_ok=True)
    failures.mkdir(exist_ok=True)
    for i, data in enumerate(inputs):
        (corpus / f"seed{i}").write_bytes(data)
    largest = max(map(len, inputs)) + 4096
    done = subprocess.run([build / f"tests/fuzz/fuzz_{target}", *LIMITS, f"-max_total_time={seconds}",
                           f"-max_len={largest}", f"-artifact_prefix={failures}/{target}-", corpus],
                          stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return target, done.returncode, done.stderr.decode(errors="replace")


def main():
    build, seconds, names = Path(sys.argv[1]).resolve(), int(sys.argv[2]), sys.argv[3:] or TARGETS
    inputs = seeds(build)
    failed = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for target, status, log in pool.map(lambda n: fuzz(build, n, inputs[n], seconds), names):
            failed += status != 0
            print(f"{target}: {'ok' if status == 0 else 'FAILED, status ' + str(status)}", flush=True)
            if status != 0:
                print(log[-6000:], flush=True)
    print(f"{len(names) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
