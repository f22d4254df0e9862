"""Broken Hugging Face folders: (name, files, words that the error must have); a file is bytes, or None for a folder of
that name."""
import json
import struct

from folder import CONFIG, safetensors, tensors_of

NAN = struct.pack("<f", float("nan"))
QUERY, NORM = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.input_layernorm.weight"


def config_cases(good):
    def config(**changes):
        return dict(good, **{"config.json": json.dumps(dict(CONFIG, **changes)).encode()})

    def raw(data):
        return dict(good, **{"config.json": data})

    text = good["config.json"]
    yield "no config", {k: v for k, v in good.items() if k != "config.json"}, ["config.json"]
    yield "config a folder", raw(None), ["config.json"]
    yield "config empty", raw(b""), ["config.json", "JSON"]
    yield "config cut", raw(text[:-10]), ["config.json", "byte"]
    yield "config not UTF-8", raw(text.replace(b"float32", b"\xff\xfe")), ["byte"]
    yield "config nested", raw(b"[" * 100000), ["deeper"]
    yield "config a list", raw(b"[1]"), ["object"]
    yield "config huge", raw(b" " * (5 << 20)), ["bytes"]
    yield "config key twice", raw(text[:-1] + b', "hidden_size": 64}'), ["hidden_size", "twice"]
    yield "config with NaN", raw(text.replace(b"1e-05", b"NaN")), ["byte"]
    for key in ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                "max_position_embeddings"):
        yield f"no {key}", config(**{key: None}), [key, "missing"]
    for key, value in (("hidden_size", 0), ("hidden_size", "64"), ("num_hidden_layers", 10**9),
                       ("num_attention_heads", -4), ("num_key_value_heads", 3), ("head_dim", 15), ("rms_norm_eps", 2),
                       ("vocab_size", 301), ("hidden_act", "relu"), ("rope_scaling", {"type": "dynamic", "factor": 2}),
                       ("eos_token_id", "end"), ("tie_word_embeddings", 1),
                       ("quantization_config", {"quant_method": "awq"}),
                       ("quantization_config", {"quant_method": "fp8", "weight_block_size": [64, 64]})):
        yield f"{key} = {value}", config(**{key: value}), []
    yield "model unknown", config(model_type="mamba"), ["mamba", "llama"]
    yield "more layers", config(num_hidden_layers=4), ["blk.3", "missing"]
    yield "fewer layers", config(num_hidden_layers=2), ["no place"]
    yield "head not there", config(tie_word_embeddings=False), ["output.weight", "missing"]
    yield "generation config", dict(good, **{"generation_config.json": b'{"eos_token_id": -1}'}), ["eos_token_id"]


def index(*pairs):
    return json.dumps({"weight_map": dict(pairs)}).encode()


def shard_cases(good, tensors):
    rest = {k: v for k, v in good.items() if k != "model.safetensors"}
    names = [t[0] for t in tensors]
    whole = {"a.safetensors": good["model.safetensors"]}
    yield "no weights", rest, ["model.safetensors"]
    yield "index to nowhere", dict(rest, **{"model.safetensors.index.json": index((names[0], "b.safetensors"))}), [
        "b.safetensors"]
    for outside in ("../model.safetensors", "/etc/passwd", "x/../../a.safetensors", "a.bin"):
        yield f"index to {outside}", dict(rest, **{"model.safetensors.index.json": index((names[0], outside))}), [
            "same folder"]
    yield "index of another shard", dict(
        rest, **whole, **{"model.safetensors.index.json": index(("model.x", "a.safetensors"))}), ["model.x"]
    yield "index cut", dict(rest, **whole, **{"model.safetensors.index.json": b'{"weight_map": {'}), ["byte"]
    yield "index without a map", dict(rest, **whole, **{"model.safetensors.index.json": b"{}"}), ["weight_map"]
    yield "tensor in two shards", dict(
        rest, **whole, **{"b.safetensors": good["model.safetensors"],
                          "model.safetensors.index.json": index((names[0], "a.safetensors"),
                                                                (names[1], "b.safetensors"))}), ["another shard"]


def container_cases(good, tensors):
    def raw(data):
        return dict(good, **{"model.safetensors": data})

    def header(change):
        return raw(safetensors(tensors, lambda entries: change(entries) or json.dumps(entries)))

    def entry(field, value):
        return header(lambda entries: entries[QUERY].__setitem__(field, value))

    whole = good["model.safetensors"]
    size = 8 + struct.unpack_from("<Q", whole)[0]
    for n in (0, 5, 8, 9, size - 1, size, size + 100, len(whole) - 1):
        yield f"safetensors cut to {n}", raw(whole[:n]), ["model.safetensors"]
    yield "header huge", raw(struct.pack("<Q", 2**63) + whole[8:]), ["header"]
    yield "header of the file's size", raw(struct.pack("<Q", len(whole)) + whole[8:]), ["header"]
    yield "header nested", raw(struct.pack("<Q", 100000) + b"[" * 100000), ["header"]
    yield "name twice", raw(safetensors(tensors, lambda e: json.dumps(e)[:-1] + f', "{QUERY}": {json.dumps(e[QUERY])}}}')), [
        "twice"]
    yield "name not UTF-8", raw(safetensors(tensors, lambda e: json.dumps(e).replace(QUERY, "\udcff\udcfe"))), ["JSON"]
    yield "dtype unknown", entry("dtype", "F4"), ["F4"]
    yield "dtype a number", entry("dtype", 4), ["number"]
    yield "dtype of another size", entry("dtype", "BF16"), ["bytes for its shape"]
    yield "shape negative", entry("shape", [-64, 64]), ["dimension"]
    yield "shape zero", entry("shape", [0, 64]), ["dimension"]
    yield "shape huge", entry("shape", [2**40, 2**40]), ["dimension"]
    yield "shape a fraction", entry("shape", [64.5, 64]), ["fraction"]
    yield "range reversed", entry("data_offsets", [16, 0]), ["data_offsets"]
    yield "range outside", entry("data_offsets", [2**40, 2**40 + 16384]), ["truncated"]
    yield "ranges overlap", entry("data_offsets", [4, 4 + 16384]), ["overlap"]
    yield "entry null", header(lambda e: e.__setitem__(QUERY, None)), ["null"]


def weight_cases(good, tensors):
    def weights(change):
        made = {t[0]: list(t) for t in tensors}
        change(made)
        return dict(good, **{"model.safetensors": safetensors(made.values())})

    yield "tensor missing", weights(lambda m: m.pop(QUERY)), ["blk.0.attn_q.weight", "missing"]
    yield "tensor unknown", weights(lambda m: m.__setitem__("x", ["model.layers.0.x", "F32", [1], bytes(4)])), ["no place"]
    yield "shape transposed", weights(lambda m: m["model.layers.0.mlp.up_proj.weight"].__setitem__(2, [64, 128])), ["expected"]
    yield "integers", weights(lambda m: m.__setitem__(QUERY, [QUERY, "I32", [64, 64], bytes(64 * 64 * 4)])), ["i32"]
    yield "FP8 without scales", weights(lambda m: m.__setitem__(QUERY, [QUERY, "F8_E4M3", [64, 64], bytes(4096)])), ["scale"]
    yield "scales of nothing", weights(lambda m: m.__setitem__("s", ["x_scale_inv", "F32", [1, 1], bytes(4)])), ["missing"]
    yield "NaN in a norm", weights(lambda m: m[NORM].__setitem__(3, NAN + m[NORM][3][4:])), [NORM, "nan"]
    yield "NaN in a matrix", weights(lambda m: m[QUERY].__setitem__(3, m[QUERY][3][:-4] + NAN)), [QUERY, "finite"]
    head = ["lm_head.weight", "F32", [300, 64], bytes(300 * 64 * 4)]
    yield "a tied head that differs", weights(lambda m: m.__setitem__("head", head)), ["lm_head", "differs"]


def tokenizer_cases(good):
    def raw(data):
        return dict(good, **{"tokenizer.json": data})

    def changed(change):
        document = json.loads(good["tokenizer.json"])
        change(document)
        return raw(json.dumps(document).encode())

    whole = good["tokenizer.json"]
    yield "no tokenizer", {k: v for k, v in good.items() if k != "tokenizer.json"}, ["tokenizer.json"]
    yield "tokenizer cut", raw(whole[:len(whole) // 2]), ["tokenizer.json"]
    yield "tokenizer nested", raw(b'{"model":' + b"[" * 100000), ["tokenizer.json"]
    yield "tokenizer a list", raw(b"[]"), ["tokenizer.json"]
    yield "tokenizer of words", changed(lambda d: d["model"].__setitem__("type", "WordLevel")), ["WordLevel"]
    yield "token id huge", changed(lambda d: d["model"]["vocab"].__setitem__("a", 2**40)), []
    yield "token id negative", changed(lambda d: d["model"]["vocab"].__setitem__("a", -1)), []
    yield "token id no integer", changed(lambda d: d["model"]["vocab"].__setitem__("a", 1e300)), ["number"]
    yield "token id twice", changed(lambda d: d["model"]["vocab"].__setitem__("a", 5)), []
    yield "token id of a line break twice", changed(lambda d: d["model"]["vocab"].update({"\n": 5})), ["same id"]
    yield "merges not pairs", changed(lambda d: d["model"].__setitem__("merges", ["th"])), []
    yield "merges of unknown pieces", changed(lambda d: d["model"].__setitem__("merges", ["xyz zyx"])), []
    yield "more tokens than rows", changed(lambda d: d["model"]["vocab"].__setitem__("zyx", 300)), ["300"]


def cases(good, gguf):
    tensors = tensors_of(gguf)
    yield from config_cases(good)
    yield from shard_cases(good, tensors)
    yield from container_cases(good, tensors)
    yield from weight_cases(good, tensors)
    yield from tokenizer_cases(good)
