"""Vocabularies and the reference tokenizers made of them: Hugging Face `tokenizers` and `sentencepiece`.

A vocabulary is a dict: model ("gpt2", "llama"), pre, tokens, types, merges, scores, as GGUF files have them.
"""

import base64
import struct

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
R0 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
R1 = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"""
    r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
R2 = R1.replace(r"\p{N}{1,3}", r"\p{N}")
R3 = R2.replace(r"]?\p{L}+", r"]?[\p{L}\p{M}]+").replace(r" ?[^\s\p{L}\p{N}]", r" ?[^\s\p{L}\p{M}\p{N}]")
DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
# What the first DeepSeek tokenizers take for a letter; the last step of their lists is "digits".
DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386"
    "\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4"
    "\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f"
    "\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_SIGNS = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
# What the names of tokenizer.ggml.pre stand for: steps, and whether text is brought to NFC first. A regular
# expression is a Split step, "digits" and "gpt2" are steps of their own.
FAMILIES = {
    "gpt-2": (["gpt2"], False),
    "smollm": (["digits", "gpt2"], False),
    "llama-bpe": ([R1], False),
    "glm4": ([R1], False),
    "qwen2": ([R2], True),
    "qwen35": ([R3], True),
    "deepseek-v3": ([r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK_V3.replace(r"\r\n", "\r\n")], False),
    "deepseek-llm": (
        ["[\r\n]", rf"\s?[{DEEPSEEK_LETTERS}]+", r"\s?" + DEEPSEEK_SIGNS, r"\s+$", EAST_ASIAN, "digits"],
        False,
    ),
    "deepseek-coder": (["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIAN, "digits"], False),
}


def metadata(path):
    """The key-value pairs of a GGUF file. The `gguf` package makes an array per string: minutes for 262,144 of them."""
    numbers = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    text, array = 8, 9
    with open(path, "rb") as file:

        def number(code):
            return struct.unpack("<" + code, file.read(struct.calcsize("<" + code)))[0]

        def value(kind):
            if kind == text:
                return file.read(number("Q")).decode()
            if kind != array:
                return number(numbers[kind])
            inner, count = number("I"), number("Q")
            if inner in (text, array):
                return [value(inner) for _ in range(count)]
            code = f"<{count}{numbers[inner]}"
            return list(struct.unpack(code, file.read(struct.calcsize(code))))

        if file.read(4) != b"GGUF":
            raise ValueError(f"{path} is no GGUF file")
        number("I"), number("Q")
        return {value(text): value(number("I")) for _ in range(number("Q"))}


def read_gguf(path):
    """The tokenizer record of a GGUF file."""
    pairs = metadata(path)
    get = lambda key, default=None: pairs.get("tokenizer.ggml." + key, default)
    return {
        "model": get("model"),
        "pre": get("pre"),
        "tokens": get("tokens"),
        "types": get("token_type"),
        "merges": get("merges", []),
        "scores": get("scores", []),
        "add_space_prefix": get("add_space_prefix", get("model") == "llama"),
        "unk": get("unknown_token_id"),
        "template": pairs.get("tokenizer.chat_template"),
    }


def byte_alphabet():
    """GPT-2's printable stand-ins for the 256 bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in kept]
    return {b: chr(b) for b in kept} | {b: chr(256 + i) for i, b in enumerate(others)}


def from_tiktoken(data, pre, specials):
    """A tiktoken file (base64 token, rank) as tokens and merges; special tokens follow the ranks."""
    ranks = {}
    for line in data.splitlines():
        if line.strip():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    alphabet = byte_alphabet()
    spell = lambda token: "".join(alphabet[b] for b in token)
    tokens, merges = [None] * len(ranks), []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        tokens[rank] = spell(token)
        # tiktoken joins any two tokens that make a token; their order among themselves as `transformers` has it.
        cuts = [(token[:at], token[at:]) for at in range(1, len(token))]
        pairs = [(ranks[left], ranks[right], left, right) for left, right in cuts if left in ranks and right in ranks]
        merges += [f"{spell(left)} {spell(right)}" for _, _, left, right in sorted(pairs)]
    types = [NORMAL] * len(tokens) + [CONTROL] * len(specials)
    return {"model": "gpt2", "pre": pre, "tokens": tokens + specials, "types": types, "merges": merges}


def add_tokens(tokenizer, vocab, normalized=False):
    from tokenizers import AddedToken

    pairs = list(zip(vocab["tokens"], vocab["types"]))
    specials = [AddedToken(t, special=True, normalized=False) for t, k in pairs if k in (CONTROL, UNKNOWN)]
    tokenizer.add_special_tokens(specials)
    tokenizer.add_tokens([AddedToken(t, normalized=normalized) for t, k in pairs if k == USER_DEFINED])
    return tokenizer


def byte_level(vocab, pre=None):
    """The `tokenizers` pipeline of a byte-level BPE vocabulary."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pre = pre or vocab["pre"]
    ids = {token: i for i, (token, kind) in enumerate(zip(vocab["tokens"], vocab["types"])) if kind != UNUSED}
    merges = []
    for line in vocab["merges"]:
        at = line.index(" ", 1)
        merges.append((line[:at], line[at + 1 :]))
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=pre == "llama-bpe"))
    steps, nfc = FAMILIES[pre]
    made = []
    for step in steps:
        if step == "digits":
            made.append(pre_tokenizers.Digits(individual_digits=True))
        elif step != "gpt2":
            made.append(pre_tokenizers.Split(Regex(step), "isolated"))
    made.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=steps[-1] == "gpt2"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(made)
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return add_tokens(tokenizer, vocab)


def char_bpe(vocab):
    """The `tokenizers` pipeline of a SentencePiece vocabulary: merges from scores, byte fallback."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    ids, scores = {}, {}
    for i, (token, kind) in enumerate(zip(vocab["tokens"], vocab["types"])):
        ids.setdefault(token, i)
        if kind == NORMAL:
            scores[token] = vocab["scores"][i]
    merges = []
    for token, score in scores.items():
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in scores and right in scores:
                merges.append((-score, ids[left], ids[right], left, right))
    merges = [(left, right) for *_, left, right in sorted(merges)]
    unk = vocab["tokens"][vocab["unk"]]
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, byte_fallback=True, fuse_unk=True, unk_token=unk))
    escape = normalizers.Replace(" ", "\u2581")
    restore = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocab["add_space_prefix"]:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), escape])
        restore.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = escape
    tokenizer.decoder = decoders.Sequence(restore)
    return add_tokens(tokenizer, vocab)


def sentencepiece(vocab):
    """The SentencePiece processor of a vocabulary with scores."""
    from sentencepiece import SentencePieceProcessor

    def varint(value):
        out = b""
        while value > 0x7F:
            out += bytes([value & 0x7F | 0x80])
            value >>= 7
        return out + bytes([value])

    field = lambda number, wire, data: varint(number << 3 | wire) + data
    text = lambda number, data: field(number, 2, varint(len(data)) + data)
    pieces = []
    for token, kind, score in zip(vocab["tokens"], vocab["types"], vocab["scores"]):
        if kind == USER_DEFINED:
            token = token.replace(" ", "\u2581")
        piece = text(1, token.encode()) + field(2, 5, struct.pack("<f", score)) + field(3, 0, varint(kind))
        pieces.append(text(1, piece))
    unk, bpe = vocab["unk"], 2
    trainer = field(3, 0, varint(bpe)) + field(35, 0, varint(1)) + field(40, 0, varint(unk))
    trainer += text(45, vocab["tokens"][unk].encode())
    normalizer = text(1, b"identity") + field(3, 0, varint(int(vocab["add_space_prefix"])))
    normalizer += field(4, 0, varint(0)) + field(5, 0, varint(1))
    return SentencePieceProcessor(model_proto=b"".join(pieces) + text(2, trainer) + text(3, normalizer))
