"""cuDNN's attention on the shape of the prefill bar, laid out contiguously: the figure to compare with.

    python3 tools/cudnn_prefill.py        needs a GPU and PyTorch with cuDNN
"""
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend


def measure(tokens, keys, causal):
    q = torch.randn(1, 32, tokens, 128, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(1, 4, keys, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = []
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        for _ in range(13):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            attend(q, k, v, is_causal=causal, enable_gqa=True)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
    ms = sorted(times[3:])[5]
    flops = 4 * 32 * 128 * (tokens * keys if not causal else tokens * (tokens + 1) / 2)
    print(f"cudnn {torch.backends.cudnn.version()}: {tokens} over {keys}, causal {causal}: {ms:.2f} ms, "
          f"{flops / ms * 1e-9:.0f} TFLOP/s", flush=True)


measure(8192, 131072, False)
measure(8192, 8192, True)
