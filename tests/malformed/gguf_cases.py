"""Broken GGUF files: (name, bytes, words that the error must have)."""
import struct

from gguf_file import ARRAY, F32, I32, STRING, U32, Gguf, array, text

HUGE = 2**62
NAN, INF = struct.pack("<f", float("nan")), struct.pack("<f", float("inf"))


def cut(raw, header_end):
    sizes = [0, 3, 4, 7, 8, 15, 16, 23, 24, 31, header_end // 2, header_end - 1, header_end + 1, len(raw) // 2,
             len(raw) - 4]
    return [(f"cut to {n}", raw[:n], []) for n in sizes]


def patched(raw, at, data):
    return raw[:at] + data + raw[at + len(data):]


def headers(raw):
    first_key = 24
    yield "magic", b"GGML" + raw[4:], ["GGUF"]
    yield "version 1", patched(raw, 4, struct.pack("<I", 1)), ["version 1"]
    yield "version 99", patched(raw, 4, struct.pack("<I", 99)), ["version 99"]
    yield "big-endian", patched(raw, 4, struct.pack(">I", 3)), ["big-endian"]
    yield "tensors huge", patched(raw, 8, struct.pack("<Q", HUGE)), ["number of tensors"]
    yield "tensors negative", patched(raw, 8, struct.pack("<q", -1)), ["number of tensors"]
    yield "one tensor more", patched(raw, 8, struct.pack("<Q", struct.unpack_from("<Q", raw, 8)[0] + 1)), []
    yield "no tensors", patched(raw, 8, struct.pack("<Q", 0)), ["missing"]
    yield "keys huge", patched(raw, 16, struct.pack("<Q", HUGE)), ["number of keys"]
    yield "key name huge", patched(raw, first_key, struct.pack("<Q", HUGE)), ["length"]
    yield "zeros", bytes(4096), ["GGUF"]
    yield "all ones", b"\xff" * 4096, ["GGUF"]


def keys(load):
    def with_key(name, kind, payload):
        g = load()
        g.set(name, kind, payload)
        return g.bytes()

    def u32(value):
        return struct.pack("<I", value)

    for name in ("general.architecture", "llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
                 "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon", "llama.context_length",
                 "tokenizer.ggml.model", "tokenizer.ggml.tokens"):
        yield f"no {name}", with_key(name, 0, None), [name, "missing"]
    for name, value in (("block_count", 0), ("block_count", 2**32 - 1), ("block_count", 4), ("block_count", 2),
                        ("embedding_length", 0), ("embedding_length", 128), ("attention.head_count", 0),
                        ("attention.head_count", 3), ("attention.head_count_kv", 3), ("context_length", 0),
                        ("rope.dimension_count", 7), ("rope.dimension_count", 64), ("vocab_size", 301),
                        ("expert_count", 8), ("attention.sliding_window", 64), ("feed_forward_length", 2**31)):
        yield f"{name} = {value}", with_key("llama." + name, U32, u32(value)), []
    yield "head count negative", with_key("llama.attention.head_count", I32, struct.pack("<i", -4)), ["-4"]
    yield "epsilon NaN", with_key("llama.attention.layer_norm_rms_epsilon", F32, NAN), ["nan"]
    yield "theta infinite", with_key("llama.rope.freq_base", F32, INF), ["inf"]
    yield "architecture unknown", with_key("general.architecture", STRING, text("mamba")), ["mamba", "llama"]
    yield "architecture not UTF-8", with_key("general.architecture", STRING, text(b"\xff\xfe\n")), ["\\xff"]
    yield "architecture a number", with_key("general.architecture", U32, u32(1)), ["u32"]
    yield "architecture long", with_key("general.architecture", STRING, text("a" * 100000)), ["..."]
    yield "rope scaling unknown", with_key("llama.rope.scaling.type", STRING, text("longrope")), ["longrope"]
    yield "split", with_key("split.count", U32, u32(3)), ["part"]
    yield "alignment 24", with_key("general.alignment", U32, u32(24)), ["power of two"]
    yield "alignment 0", with_key("general.alignment", U32, u32(0)), ["alignment"]
    yield "key type 77", with_key("x", 77, b""), ["77"]
    yield "array of type 77", with_key("x", ARRAY, struct.pack("<IQ", 77, 1)), ["77"]
    yield "array huge", with_key("x", ARRAY, struct.pack("<IQ", U32, HUGE)), ["elements"]
    yield "arrays nested", with_key("x", ARRAY, struct.pack("<IQ", ARRAY, 1) * 50 + array(U32, [1])), ["nests"]
    yield "layers differ", with_key("llama.attention.head_count_kv", ARRAY, array(I32, [2, 2, 1])), ["layer"]
    twice = load()
    twice.keys.append(twice.keys[0])
    yield "key twice", twice.bytes(), ["twice"]
    yield "token types too few", with_key("tokenizer.ggml.token_type", ARRAY, array(I32, [1])), ["token_type"]
    yield "eos out of range", with_key("tokenizer.ggml.eos_token_id", U32, u32(300)), ["eos"]
    yield "tokens are numbers", with_key("tokenizer.ggml.tokens", ARRAY, array(U32, [1] * 300)), ["tokens"]
    yield "tokenizer unknown", with_key("tokenizer.ggml.model", STRING, text("rwkv")), ["rwkv"]
    yield "pre-tokenizer unknown", with_key("tokenizer.ggml.pre", STRING, text("klingon")), ["klingon"]
    yield "merges not pairs", with_key("tokenizer.ggml.merges", ARRAY, array(STRING, ["th"])), ["merge"]
    template = "tokenizer.chat_template"
    yield "template syntax", with_key(template, STRING, text("{% for %}")), []
    yield "template nested", with_key(template, STRING, text("{{" + "(" * 50000)), []
    yield "template calls itself", with_key(
        template, STRING, text("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")), []
    yield "template without end", with_key(
        template, STRING, text("{% for i in range(1000000000) %}{% for j in range(1000000000) %}x{% endfor %}{% endfor %}")), []
    yield "template grows", with_key(
        template, STRING, text("{% set n = namespace(s='ab') %}{% for i in range(100) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}")), []


def tensors(load):
    def changed(change):
        g = load()
        change(g)
        return g.bytes()

    def field(name, index, value):
        return changed(lambda g: g.tensor(name).__setitem__(index, value))

    norm, query, up = "blk.0.attn_norm.weight", "blk.1.attn_q.weight", "blk.2.ffn_up.weight"
    for name in ("token_embd.weight", "output_norm.weight", norm, query, up):
        yield f"no {name}", changed(lambda g, n=name: g.tensors.remove(g.tensor(n))), [name, "missing"]
    yield "unknown tensor", changed(lambda g: g.tensors.append([b"blk.0.x", [4], 0, None, bytes(16)])), ["blk.0.x"]
    evil = b"\xff\xfe\x1b[2J\n"
    yield "name not UTF-8", changed(lambda g: g.tensors.append([evil, [4], 0, None, bytes(16)])), ["\\xff\\xfe\\x1b"]
    yield "name empty", field(query, 0, b""), ["no name"]
    yield "name twice", field(query, 0, norm.encode()), ["twice"]
    yield "dimension 0", field(query, 1, [0, 64]), ["dimension"]
    yield "dimension huge", field(query, 1, [2**62, 8]), ["dimension"]
    yield "dimensions 0", field(query, 1, []), ["0 dimensions"]
    yield "dimensions 5", field(query, 1, [1] * 5), ["5 dimensions"]
    yield "shape transposed", field(up, 1, [128, 64]), [up, "expected"]
    yield "norm of two dimensions", field(norm, 1, [64, 1]), [norm]
    yield "type unknown", field(query, 2, 1234), ["1234"]
    yield "type IQ4_NL", field(query, 2, 20), ["IQ4_NL"]
    yield "type integer", field(query, 2, 26), ["i32"]
    yield "type Q4_K of rows of 64", field(query, 2, 12), ["256"]
    yield "norm of integers", field(norm, 2, 26), [norm, "i32"]
    yield "offset beyond", field(query, 3, 2**40), ["offset"]
    yield "offset unaligned", field(query, 3, 4), ["multiple"]
    yield "offset of another", field(query, 3, 0), ["overlap"]
    yield "data behind the end", field(query, 3, 2**18), []
    yield "NaN in a norm", changed(lambda g: g.tensor(norm).__setitem__(4, NAN + g.tensor(norm)[4][4:])), ["nan"]
    yield "infinite norm", changed(lambda g: g.tensor(norm).__setitem__(4, INF * 64)), ["inf"]
    yield "NaN in a matrix", changed(lambda g: g.tensor(query).__setitem__(4, g.tensor(query)[4][:-4] + NAN)), [query]
    yield "infinite embedding", changed(
        lambda g: g.tensor("token_embd.weight").__setitem__(4, INF + g.tensor("token_embd.weight")[4][4:])), ["finite"]


def cases(raw):
    def load():
        return Gguf(raw)

    yield from cut(raw, load().header_end)
    yield from headers(raw)
    yield from keys(load)
    yield from tensors(load)
