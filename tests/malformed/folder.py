"""The tiny Llama of a GGUF file as a Hugging Face folder: the same weights, so that both give the same answers."""
import json
import struct

ROLES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
HEAD_DIM = 16  # of tiny_model
CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": HEAD_DIM, "intermediate_size": 128, "vocab_size": 300,
          "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
          "tie_word_embeddings": True, "torch_dtype": "float32", "eos_token_id": 2}


def hf_name(name):
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, role, kind = name.split(".")
    return f"model.layers.{layer}.{ROLES[role]}.{kind}"


def unpermuted(data, rows):
    """Row h D + 2 i + s of GGUF is row h D + s D / 2 + i of safetensors."""
    size, out = len(data) // rows, bytearray(len(data))
    for row in range(rows):
        head, rest = divmod(row, HEAD_DIM)
        to = head * HEAD_DIM + rest % 2 * (HEAD_DIM // 2) + rest // 2
        out[to * size:(to + 1) * size] = data[row * size:(row + 1) * size]
    return bytes(out)


def tensors_of(gguf):
    """[name, dtype, shape, data] of every tensor; tiny_model writes F32."""
    out = []
    for raw, dims, kind, _, data in gguf.tensors:
        assert kind == 0
        shape, size = dims[::-1], 4
        for d in dims:
            size *= d
        name, data = raw.decode(), data[:size]
        if ".attn_q." in name or ".attn_k." in name:
            data = unpermuted(data, shape[0])
        out.append([hf_name(name), "F32", shape, data])
    return out


def safetensors(tensors, header=None):
    entries, data = {}, b""
    for name, dtype, shape, content in tensors:
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    raw = (json.dumps(entries) if header is None else header(entries)).encode(errors="surrogateescape")
    return struct.pack("<Q", len(raw)) + raw + data


def strings(payload):
    """Of an array of strings in a GGUF file."""
    count, at, out = struct.unpack_from("<Q", payload, 4)[0], 12, []
    for _ in range(count):
        size = struct.unpack_from("<Q", payload, at)[0]
        out.append(payload[at + 8:at + 8 + size].decode())
        at += 8 + size
    return out


def tokenizer(gguf, pipeline):
    """tokenizer.json of its vocabulary: three control tokens, then pieces."""
    key = {k[0].decode(): k[2] for k in gguf.keys}
    tokens, merges = strings(key["tokenizer.ggml.tokens"]), strings(key["tokenizer.ggml.merges"])
    added = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i in range(3)]
    model = dict(pipeline["model"], vocab={t: i for i, t in enumerate(tokens) if i >= 3}, merges=merges)
    return dict(pipeline, added_tokens=added, model=model)


def files_of(gguf, pipeline):
    """Name -> bytes of a folder that loads."""
    template = next(k[2][8:] for k in gguf.keys if k[0] == b"tokenizer.chat_template")
    return {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": safetensors(tensors_of(gguf)),
            "tokenizer.json": json.dumps(tokenizer(gguf, pipeline)).encode(), "chat_template.jinja": template,
            "tokenizer_config.json": json.dumps({"eos_token": "<|im_end|>"}).encode(),
            "generation_config.json": json.dumps({"eos_token_id": [2, 0], "temperature": 0.7}).encode()}
