#!/usr/bin/env python3
"""Goldens of the text module, from Hugging Face `tokenizers` and `jinja2`.

    python tools/goldens/text.py [--model models/smollm2.gguf] [--qwen models/qwen0.5b.gguf]

writes tests/goldens/text/{vocab,decode,rules,pipelines,sentencepiece,templates,template_models}.json and
encode/PRE.json for each pre-tokenizer.
The small vocabulary is the first merges of the model's, that of SentencePiece is trained on TEXTS; without
--model both are kept as they are in the tree. Needs: tools/goldens/requirements.txt.
"""

import argparse
import json
import pathlib
import random

import text_templates
import vocabularies
from vocabularies import CONTROL, NORMAL, USER_DEFINED

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/goldens/text"
MERGES = 2500
def small_vocab(full):
    """Control tokens, a user-defined one that is another's prefix, byte tokens and the first merges."""
    tokens, types = [], []
    for token, kind in zip(full["tokens"], full["types"]):
        if kind == CONTROL or len(token) == 1:
            tokens.append(token)
            types.append(kind)
    merges = full["merges"][:MERGES]
    for merge in merges:
        tokens.append("".join(merge.split(" ", 1)))
        types.append(NORMAL)
    for token in ("<|im_start|><think>", "<think>"):
        tokens.append(token)
        types.append(USER_DEFINED)
    return full | {"tokens": tokens, "types": types, "merges": merges}


TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "Hello, world!",
    "hello  world   and    more",
    "tabs\tand\t\tmore \t mixed",
    "a\nb\n\nc\r\nd \n e\n ",
    "trailing spaces   ",
    "   leading",
    "I'm you're we've they'll he'd it's can't '' ''s 'S 'RE 'x don''t",
    "12345 3.14159 1,000,000 x2y 5 items  7",
    " 1 2  3   4",
    "\u0663\u0664 \u096a\u096b \u2160\u2161 \u00bd \u00b2 \u2460 \uff11\uff12 \U0001d7d8",
    "caf\u00e9 cafe\u0301 na\u00efve \u00c5ngstr\u00f6m stra\u00dfe",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u03ba\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3000\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 \ud55c\uad6d\uc5b4",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643\u0645 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f3fd \u2764\ufe0f \U0001f1e9\U0001f1ea",
    "nbsp\u00a0x \u2003em \u2028line\u2029para \u3000wide \u0085nel\u202fthin",
    "control \u0000\u0001\u0004\u0006\u0013\u001d\u001f\u007f\u0080 end",
    "zero\u200bwidth \ufeffbom \u00adsoft",
    "private \ue000 \U000f0000 \U00050000 noncharacter \uffff \U0010ffff",
    "\u1c89\u1c8a \ua7cb \U00010d40\U00010d41 \U0002ebf0 \U0001ccf0 \U00011de0",
    "int main() { return x->y[0] != 42 && !z; }  // comment\n\tfor (;;) ++i;\n",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|><think>x</think><think> <|im_start|> <|im_end|",
    "a<|endoftext|>b <repo_name>x<file_sep> <|im_end|><|im_end|>",
    "<|im_start <|im_start|><|im_start|>",
    "a" * 200,
    " " * 65 + "x" + "\n" * 33 + "y",
    "the the the " * 20 + "in in in",
    "!?!?...---___===***'\"`~@#$%^&*()",
    "'S 'sx 'RE're 'Ve 'LL 'lL 'D'd '\u017f '\u017fx x'\u212a ' s '\n '",
    "a\n\n b\r\n\r\n  c \n \n\td\u3000\n e  \r f\u2028 g",
    "!\n?\r\n\n ...\n  -\n--> <--\n\n(x)\n[y] .z _w #include @me \u00bfque? \u20ac5 \u00a3x +a =b",
    "1 12 123 1234 12345 123456 \u0661\u0662\u0663\u0664 1\u4e00 2\u3042 x1y22z333",
    "\u4e00\u4e8c\u3042\u30a2\u9fa5\u9fa6\uac00 \u4e00a \u3041!\u30ff \u31f0",
    "e\u0301a \u0301x  \u0301\u0302 1\u0301 !\u0301 \u20e3 a\u0327\u0301 \u0344 \u1e0b\u0323 \u212b \uac00\u11a8",
    "\u0001a \u0001 b\u200bc \u200b\u200bd \ufeff1 \u00ad!",
]


def random_texts(count, length):
    """Texts of random code points of many blocks, with a bias to spaces, digits and quotes."""
    rng = random.Random(7)
    ranges = [(0x20, 0x7E), (0x20, 0x7E), (0x00, 0xFF), (0x100, 0x24F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0x97F)]
    ranges += [(0x2000, 0x206F), (0x2150, 0x218F), (0x3000, 0x30FF), (0x4E00, 0x4EFF), (0x1F600, 0x1F64F)]
    texts = []
    for _ in range(count):
        text = ""
        while len(text) < length:
            kind = rng.random()
            if kind < 0.3:
                text += rng.choice([" ", "  ", "\n", "\t", " \n", "'s", "'", "7", " 42"])
            else:
                low, high = rng.choice(ranges)
                text += chr(rng.randint(low, high))
        texts.append(text)
    return texts


def encode_goldens(vocab, pre):
    tokenizer = vocabularies.byte_level(vocab, pre)
    texts = TEXTS + random_texts(20, 60)
    cases = [{"text": t, "ids": tokenizer.encode(t).ids} for t in texts]
    tokenizer.encode_special_tokens = True
    return {"cases": cases, "plain": [{"text": t, "ids": tokenizer.encode(t).ids} for t in TEXTS if "<" in t]}


def decode_goldens(vocab):
    rng = random.Random(11)
    decoded = []
    tokenizer = vocabularies.byte_level(vocab)
    for length in (1, 2, 3, 5, 8, 40, 40, 40):
        for _ in range(4):
            # Low ids are single bytes and control tokens: many unfinished and invalid characters.
            ids = [rng.randrange(len(vocab["tokens"]) if rng.random() < 0.3 else 252) for _ in range(length)]
            text, shown = (tokenizer.decode(ids, skip_special_tokens=skip) for skip in (False, True))
            decoded.append({"ids": ids, "text": text, "shown": shown})
    return decoded


def train_sentencepiece():
    """A small vocabulary with byte fallback, runs of spaces and line breaks as user-defined symbols."""
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(t.replace("\0", "") for t in TEXTS * 3),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["  ", "   ", "\n", "\n\n", "<b>", "ing"],
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    size = processor.get_piece_size()
    kinds = [
        (processor.is_unknown, vocabularies.UNKNOWN),
        (processor.is_control, CONTROL),
        (processor.is_byte, vocabularies.BYTE),
    ]
    types = [next((kind for holds, kind in kinds if holds(i)), NORMAL) for i in range(size)]
    tokens = [processor.id_to_piece(i) for i in range(size)]
    symbols = ["\u2581\u2581", "\u2581\u2581\u2581", "\n", "\n\n", "<b>", "ing"]
    types = [USER_DEFINED if token in symbols else kind for token, kind in zip(tokens, types)]
    return {
        "model": "llama",
        "tokens": tokens,
        "types": types,
        "scores": [processor.get_score(i) for i in range(size)],
        "unk": processor.unk_id(),
    }


def sentencepiece_goldens(vocab):
    """Ids of `sentencepiece` with and without its dummy prefix, and of `tokenizers` by merges."""
    texts = [t for t in TEXTS + random_texts(20, 60) if "\u2581" not in t]
    out = {"vocab": vocab}
    for name, prefix in (("prefixed", True), ("bare", False)):
        spec = vocab | {"add_space_prefix": prefix}
        processor = vocabularies.sentencepiece(spec)
        out[name] = [{"text": t, "ids": processor.encode(t), "decoded": processor.decode(processor.encode(t))} for t in texts]
    tokenizer = vocabularies.char_bpe(vocab | {"add_space_prefix": True})
    texts = ["a <s>b</s> c", "<s>", "x\n\n\ny <b> z  w", "ing king  <unk>"] + TEXTS[3:12]
    out["by_merges"] = {
        "file": json.loads(tokenizer.to_str()),
        "cases": [{"text": t, "ids": tokenizer.encode(t).ids} for t in texts],
    }
    return out


def rule_goldens(vocab):
    """Ids with one added token that is found by each rule."""
    from tokenizers import AddedToken

    texts = ["a <think> b", "a<think>b", " <think> <think> ", "<think>", "x \u2003\n<think>\n\n y", "_<think>", "<think>7 \u00e9<think>"]
    texts += ["-<think>-", "<think><think> a", "e\u0301<think>\u0301", "\u200d<think>", "\u2460<think>\u24b6 <think>\u24b6", "<think>\u0939"]
    out = []
    for rule in ({"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}, {"single_word": True}, {"normalized": True}):
        plain = vocab | {"types": [NORMAL if t.endswith("<think>") else k for t, k in zip(vocab["tokens"], vocab["types"])]}
        tokenizer = vocabularies.byte_level(plain, "qwen2")
        tokenizer.add_tokens([AddedToken("<think>", **({"normalized": False} | rule))])
        out.append({"rule": rule, "cases": [{"text": t, "ids": tokenizer.encode(t).ids} for t in texts]})
    return out


def pipeline_goldens(vocab):
    """tokenizer.json of each pre-tokenizer as the reference writes it, without vocabulary and merges."""
    out = {}
    for pre in vocabularies.FAMILIES:
        file = json.loads(vocabularies.byte_level(vocab, pre).to_str())
        file["model"] |= {"vocab": {}, "merges": []}
        del file["added_tokens"]
        out[pre] = file
    return out


def write(name, value):
    (OUT / name).parent.mkdir(parents=True, exist_ok=True)
    lines = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    (OUT / name).write_text(lines.replace('},{"', '},\n{"') + "\n")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--model", help="GGUF file to take the small vocabulary from")
    args.add_argument("--qwen", help="GGUF file to take a chat template with tools from")
    args = args.parse_args()
    model = args.model
    if model:
        write("vocab.json", small_vocab(vocabularies.read_gguf(model)))
        trained = train_sentencepiece()
    else:
        trained = json.loads((OUT / "sentencepiece.json").read_text())["vocab"]
    vocab = json.loads((OUT / "vocab.json").read_text())
    for pre in vocabularies.FAMILIES:
        write(f"encode/{pre}.json", encode_goldens(vocab, pre))
    write("pipelines.json", pipeline_goldens(vocab))
    write("decode.json", decode_goldens(vocab))
    write("rules.json", rule_goldens(vocab))
    write("sentencepiece.json", sentencepiece_goldens(trained))
    write("templates.json", text_templates.goldens(vocab["template"]))
    if args.qwen:
        qwen = vocabularies.read_gguf(args.qwen)["template"]
    else:
        qwen = json.loads((OUT / "template_models.json").read_text())["qwen"]
    write("template_models.json", text_templates.model_goldens(qwen))


if __name__ == "__main__":
    main()
