#!/usr/bin/env python3
"""The command line from outside, on a tiny random model: what it prints, what it refuses, and how it ends.

    cli_test.py ENGINE TINY_MODEL [unittest options]

ENGINE is the binary, TINY_MODEL the program that writes the model file. Standard library only."""
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ENGINE, TINY_MODEL = "", ""
TIMEOUT = 120  # seconds; sanitizer builds on a busy machine are slow
PLAN = "snapkv(budget=96,sink=4,recent=32)+kivi(group=16)+quest(budget=64)"


class CliTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = Path(cls.folder.name)
        cls.model = str(cls.dir / "tiny.gguf")
        subprocess.run([TINY_MODEL, cls.model], check=True, timeout=TIMEOUT)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def call(self, *args, text="", stdout=subprocess.PIPE, env=None):
        return subprocess.run([ENGINE, *map(str, args)], input=text, stdout=stdout, stderr=subprocess.PIPE, text=True,
                              timeout=TIMEOUT, check=False, env={**os.environ, **(env or {})}, errors="replace")

    def good(self, *args, text=""):
        """Standard output of a call that succeeds and says nothing on standard error (no progress in a pipe)."""
        done = self.call(*args, text=text)
        self.assertEqual((done.returncode, done.stderr), (0, ""), args)
        return done.stdout

    def refused(self, *args, says, text="", stdout=subprocess.PIPE, env=None):
        """A call that fails with one line on standard error, in which all of `says` occur."""
        done = self.call(*args, text=text, stdout=stdout, env=env)
        self.assertNotEqual(done.returncode, 0, args)
        self.assertGreater(done.returncode, 0, f"ended by a signal: {args}: {done.stderr}")
        self.assertRegex(done.stderr, r"\Asparse-engine: [^\n]+\n\Z")
        for part in says:
            self.assertIn(part, done.stderr)

    def run_json(self, *args, **kwargs):
        return json.loads(self.good("run", "-m", self.model, "--json", *args, **kwargs))

    def write(self, name, data):
        path = self.dir / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return str(path)


class Files(CliTest):
    def test_truncated_file_names_the_byte(self):
        whole = Path(self.model).read_bytes()
        for share in (0.5, 0.9, 0.999):
            cut = self.write("cut.gguf", whole[:int(len(whole) * share)])
            self.refused("run", "-m", cut, "-p", "x", says=["cut.gguf", "byte"])
        for size in (0, 3, 4, 11, 100):
            cut = self.write("cut.gguf", whole[:size])
            self.refused("run", "-m", cut, "-p", "x", says=["cut.gguf"])

    def test_lying_file_is_not_believed(self):
        whole = Path(self.model).read_bytes()
        name = b"token_embd.weight"
        at = whole.index(struct.pack("<Q", len(name)) + name) + 8 + len(name) + 4  # its dims, after their number
        for dims in ((64, 2**40), (2**63, 2), (64, 0), (64, 299)):
            lie = whole[:at] + struct.pack("<QQ", *dims) + whole[at + 16:]
            self.refused("run", "-m", self.write("lie.gguf", lie), "-p", "x", says=["lie.gguf"])
        keys = whole[:16] + struct.pack("<Q", 2**62) + whole[24:]  # header: magic, version, tensors, keys
        self.refused("run", "-m", self.write("keys.gguf", keys), "-p", "x", says=["keys.gguf"])
        tensors = whole[:8] + struct.pack("<Q", 2**62) + whole[16:]
        self.refused("run", "-m", self.write("tensors.gguf", tensors), "-p", "x", says=["tensors.gguf"])

    def test_wrong_architecture_lists_those_there_are(self):
        whole = Path(self.model).read_bytes()
        other = whole.replace(struct.pack("<Q", 5) + b"llama", struct.pack("<Q", 5) + b"mamba", 1)
        self.assertNotEqual(whole, other)
        self.refused("run", "-m", self.write("other.gguf", other), "-p", "x", says=["other.gguf", "mamba", "llama"])

    def test_not_a_model(self):
        self.refused("run", "-m", self.write("text.gguf", "once upon a time"), "-p", "x", says=["text.gguf"])
        self.refused("run", "-m", self.dir / "none.gguf", "-p", "x", says=["none.gguf", "No such file"])
        self.refused("run", "-m", self.dir, "-p", "x", says=[str(self.dir), "directory"])

    def test_unreadable_prompt_file(self):
        self.refused("run", "-m", self.model, "-f", self.dir / "none.txt", says=["none.txt", "No such file"])
        self.refused("run", "-m", self.model, "-f", self.dir, says=[str(self.dir), "directory"])
        self.refused("run", "-m", self.model, "--ids", self.dir / "none.ids", says=["none.ids", "No such file"])

    def test_ids_file_says_where_it_is_wrong(self):
        self.refused("run", "-m", self.model, "--ids", self.write("a.ids", "1 2 x"), says=["a.ids", "'x'", "byte 4"])
        self.refused("run", "-m", self.model, "--ids", self.write("b.ids", "1 300"), says=["300", "vocabulary"])
        self.refused("run", "-m", self.model, "--ids", self.write("c.ids", ""), says=["empty"])


class Requests(CliTest):
    def test_prompt_over_the_context(self):
        self.refused("run", "-m", self.model, "-c", "64", "-p", "x" * 100, says=["tokens", "64"])
        self.refused("run", "-m", self.model, "-c", "99999", "-p", "x", says=["99999", "32768"])

    def test_no_memory_for_the_kv(self):
        self.refused("run", "-m", self.model, "--kv-size", "1m", "-n", "8", text="word " * 2000,
                     says=["MiB", "1.0 MiB", "dense"])
        self.refused("bench", "-m", self.model, "--kv-size", "64k", "-p", "512", "-n", "0", "-r", "1", "--json",
                     says=["bytes"])

    def test_bad_plan_text(self):
        for plan, says in (("snapvk", ["snapkv"]), ("quest(unit=24)", ["16, 32"]), ("quest(budgt=1k)", ["budget"]),
                           ("fp8+kivi", ["fp8", "kivi"]), ("snapkv(", ["column 8"]), ("quest(budget=25%)", ["budget"]),
                           ("kivi", ["group", "16"]), ("adakv", ["not built"])):
            self.refused("run", "-m", self.model, "-p", "x", "--plan", plan, says=[plan, *says])
        self.refused("bench", "-m", self.model, "-r", "1", "--plan", "snapvk", "--json", says=["snapkv"])
        self.refused("chat", "-m", self.model, "--plan", "snapvk", says=["snapkv"])

    def test_bad_options(self):
        self.refused("run", says=["--model"])
        self.refused(says=["subcommand"])
        self.refused("run", "-m", self.model, "-p", "x", "--kv-size", "1q", says=["1q", "512m"])
        self.refused("run", "-m", self.model, "-p", "x", "--temp", "warm", says=["warm"])
        self.refused("run", "-m", self.model, "-p", "x", "--top-p", "0", says=["top_p 0", "over 0"])
        self.refused("run", "-m", self.model, "-p", "x", "-n", "-1", says=["-1"])
        self.refused("run", "-m", self.model, "-p", "x", says=["SE_ISA", "avx2"], env={"SE_ISA": "mmx"})

    def test_an_unknown_command_lists_those_there_are(self):
        self.refused("nosuch", says=("'nosuch'", "run", "bench", "methods"))

    def test_bench_wants_something_to_measure(self):
        self.refused("bench", "-m", self.model, "-p", "-4", says=("-p -4", "at least 0"))
        self.refused("bench", "-m", self.model, "-d", "-3", says=("-d -3", "at least 0"))
        self.refused("bench", "-m", self.model, "-p", "0", "-n", "0", says=("nothing to measure",))
        for more in ((), ("-d", "0,64", "-p", "0"), ("-d", "64"), ("-d", "64", "-p", "0", "--explain")):
            self.refused("bench", "-m", self.model, "--in-turn", *more, says=("--in-turn: wanted -p 0",))
        self.refused("bench", "-m", self.model, "--in-turn", "-d", "64", "-p", "0", "-n", "8", says=("8 to decode, wanted 9",))

    def test_token_rules_out_of_range(self):
        run = ("run", "-m", self.model, "-p", "x", "--raw")
        self.refused(*run, "--logit-bias", "5", says=("--logit-bias 5", "ID=VALUE"))
        self.refused(*run, "--logit-bias", "5=1000", says=("logit_bias 1000", "-100 to 100"))
        self.refused(*run, "--presence-penalty", "9", says=("presence_penalty 9", "-2 to 2"))
        self.refused(*run, "--repetition-penalty", "0", says=("repetition_penalty 0", "over 0"))
        self.refused(*run, "--allowed-ids", "999999", says=("allowed_ids", "999999", "vocabulary"))
        self.refused(*run, "--choices", "0", says=("n 0", "1 to"))
        self.refused(*run, "-n", "4", "--min-tokens", "5", says=("min_tokens 5", "max_tokens 4"))

    def test_closed_standard_output(self):
        for args in (("run", "-m", self.model, "-p", "x", "-n", "4"), ("methods",), ("methods", "--json"),
                     ("run", "-m", self.model, "-p", "x", "-n", "4", "--json"),
                     ("bench", "-m", self.model, "-p", "16", "-n", "0", "-r", "1")):
            with open("/dev/full", "w", encoding="utf-8") as full:
                self.refused(*args, stdout=full, says=["standard output"])
            reader, writer = os.pipe()
            os.close(reader)
            with os.fdopen(writer, "w") as broken:
                self.refused(*args, stdout=broken, says=["standard output"])
        with open("/dev/full", "w", encoding="utf-8") as full:
            self.refused("tokenize", "-m", self.model, text="x", stdout=full, says=["standard output"])
            self.refused("chat", "-m", self.model, "-n", "4", text="x\n", stdout=full, says=["standard output"])


class Output(CliTest):
    def test_run_json_has_every_field(self):
        a = self.run_json("-p", "the other end", "-n", "6", "--logprobs", "2", "--prompt-logprobs", "1", "--ignore-eos")
        for key in ("prompt_ids", "ids", "text", "logprobs", "prompt_logprobs", "usage", "timing"):
            self.assertIn(key, a)
        self.assertEqual((len(a["ids"]), len(a["logprobs"])), (6, 6))
        self.assertEqual(len(a["prompt_logprobs"]), len(a["prompt_ids"]))
        self.assertIsNone(a["prompt_logprobs"][0])
        for tokens, ids in ((a["logprobs"], a["ids"]), (a["prompt_logprobs"][1:], a["prompt_ids"][1:])):
            for alternatives, token in zip(tokens, ids):
                self.assertIn(str(token), alternatives)
                self.assertTrue(all(p <= 0 for p in alternatives.values()))
        kv = a["usage"]["kv"]
        self.assertEqual(kv["logical_tokens"], len(a["prompt_ids"]) + 5)
        for key in ("plan", "resident_tokens", "resident_bytes", "peak_bytes", "dense_bytes", "read_tokens", "read_ratio"):
            self.assertIn(key, kv)
        self.assertEqual(len(a["timing"]["token_s"]), 5)

    def test_a_composed_plan_is_priced_as_it_is_counted(self):
        a = self.run_json("--plan", PLAN, "-n", "12", "--ignore-eos", text="word " * 300)
        kv = a["usage"]["kv"]
        self.assertEqual(kv["plan"], PLAN)
        self.assertEqual(kv["resident_bytes"], kv["predicted_resident_bytes"])
        self.assertEqual(kv["peak_bytes"], kv["predicted_peak_bytes"])
        self.assertLess(kv["resident_bytes"] * 4, kv["dense_bytes"])
        self.assertLess(kv["resident_tokens"], 200)
        self.assertLess(kv["read_tokens"], kv["resident_tokens"])

    def test_prompts_that_read_blocks_say_how_much(self):
        plan = "flashprefill(threshold=1,block=16,sink=1,window=1,last=1,min_len=64)"
        a = self.run_json("--plan", plan, "-n", "1", text="word " * 300)
        kv, dense = a["usage"]["kv"], self.run_json("-n", "1", text="word " * 300)["usage"]["kv"]
        by_layer = kv["prompt_read_by_layer"]
        self.assertLess(kv["prompt_read_ratio"], 0.9)
        self.assertAlmostEqual(kv["prompt_read_ratio"], sum(by_layer) / len(by_layer), places=5)
        self.assertEqual((dense["prompt_read_ratio"], dense["prompt_read_by_layer"]), (1, []))
        self.assertEqual(kv["resident_bytes"], dense["resident_bytes"])

    def test_the_answer_depends_neither_on_threads_nor_on_the_run(self):
        for args in (["--temp", "1", "--seed", "7"], ["--plan", PLAN], []):
            args = ["-n", "24", "--ignore-eos", *args]
            first = self.run_json(*args, "-t", "1", text="over and over " * 40)["ids"]
            self.assertEqual(first, self.run_json(*args, "-t", "3", text="over and over " * 40)["ids"])
        other = self.run_json("-n", "24", "--ignore-eos", "--temp", "1", "--seed", "8", text="over and over " * 40)["ids"]
        same = self.run_json("-n", "24", "--ignore-eos", "--temp", "1", "--seed", "7", text="over and over " * 40)["ids"]
        self.assertNotEqual(other, same)

    def test_prompts_come_from_option_file_standard_input_or_ids(self):
        want = self.run_json("-p", "four ways", "-n", "4")
        file = self.write("prompt.txt", "four ways")
        ids = self.write("prompt.ids", " ".join(map(str, want["prompt_ids"])))
        for args in (["-f", file], ["-f", "-"], [], ["--ids", ids]):
            got = self.run_json(*args, "-n", "4", text="four ways")
            self.assertEqual((got["prompt_ids"], got["ids"]), (want["prompt_ids"], want["ids"]), args)
        raw = self.run_json("-p", "four ways", "--raw", "-n", "4")["prompt_ids"]
        self.assertEqual(raw, json.loads(self.good("tokenize", "-m", self.model, "--json", text="four ways"))["ids"])

    def test_stop_string_is_not_part_of_the_answer(self):
        tried = 0
        for prompt in ("hello", "over", "the end", "ours"):  # a random model: some answers have no two letters in a row
            args = ["-p", prompt, "-n", "16", "--ignore-eos"]
            text = self.run_json(*args)["text"]
            for stop in re.findall(r"[ -~]{2}", text)[:2]:
                got = self.run_json(*args, "--stop", stop)
                self.assertEqual((got["text"], got["finish_reason"]), (text[:text.index(stop)], "stop"))
                tried += 1
        self.assertGreater(tried, 0)

    def test_tokenize(self):
        ids = json.loads(self.good("tokenize", "-m", self.model, "--json", text="the end<|im_end|>"))["ids"]
        self.assertEqual(ids[-1], 2)
        self.assertEqual([int(i) for i in self.good("tokenize", "-m", self.model, text="the end<|im_end|>").split()], ids)
        self.assertEqual(json.loads(self.good("tokenize", "-m", self.model, "--no-special", "--json", text=""))["ids"], [])

    def test_tokenize_decodes_and_needs_no_weights(self):
        text = "the end\n caf\u00e9"
        ids = self.good("tokenize", "-m", self.model, "--no-special", text=text)
        self.assertEqual(self.good("tokenize", "-m", self.model, "--decode", text=ids), text)
        self.assertEqual(json.loads(self.good("tokenize", "-m", self.model, "--decode", "--json", text=ids))["text"], text)
        self.refused("tokenize", "-m", self.model, "--decode", text="99999999", says=["99999999", "outside the vocabulary"])
        self.refused("tokenize", "-m", self.model, "--decode", text="x", says=["decimal token ids", "'x'"])
        folder = self.dir / "folder"
        folder.mkdir()
        self.refused("tokenize", "-m", folder, says=["tokenizer.json: no such file"])
        tokens = {chr(c): c - 33 for c in range(33, 127)} | {"\u0120": 94, "ab": 95}
        (folder / "tokenizer.json").write_text(json.dumps({
            "model": {"type": "BPE", "vocab": tokens, "merges": ["a b"]},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
            "decoder": {"type": "ByteLevel"}}))
        self.assertEqual(json.loads(self.good("tokenize", "-m", folder, "--json", text="ab b"))["ids"], [95, 94, 65])

    def test_methods(self):
        lines = [json.loads(line) for line in self.good("methods", "--json").splitlines()]
        names = {line["stage"]: line for line in lines}
        self.assertLessEqual({"snapkv", "streamingllm", "dtype", "fp8", "kivi", "quest"}, set(names))
        for line in lines:
            self.assertLessEqual({"axis", "stage", "summary", "source"}, set(line))
            for field in line["fields"]:
                self.assertLessEqual({"name", "default", "help"}, set(field))
        table = self.good("methods")
        for name in names:
            self.assertIn(name, table)
        for line in self.good("methods", "--matrix", "--json").splitlines():
            self.assertEqual(set(json.loads(line)["with"]) | {json.loads(line)["stage"]}, set(names))

    def test_bench_json_counts_what_was_priced(self):
        out = self.good("bench", "-m", self.model, "-p", "64", "-n", "8", "-d", "0,256", "-b", "1,2", "-r", "1", "--plan",
                        "dense", "--plan", PLAN, "--explain", "--json")
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertEqual(len(lines), 2 * 2 * 2 * 2)  # tests, depths, batches, plans
        wanted = "test n depth batch plan threads isa tok_per_s p10 p90 kv_bytes peak_kv_bytes resident_tokens read_tokens"
        for line in lines:
            self.assertEqual(list(line)[:14], wanted.split())
            self.assertGreater(line["tok_per_s"], 0)
            self.assertEqual(line["kv_bytes"], line["explain"]["resident_bytes"], line)
        self.assertEqual({line["test"] for line in lines}, {"pp", "tg"})
        decode = [line for line in lines if line["test"] == "tg" and line["depth"] == 256 and line["batch"] == 1]
        dense, composed = (next(x for x in decode if (x["plan"] == "dense") == d) for d in (True, False))
        self.assertLess(composed["read_tokens"], dense["read_tokens"])
        table = self.good("bench", "-m", self.model, "-p", "16", "-n", "2", "-r", "1")
        self.assertIn("| dense", table)

    def test_bench_tells_what_prompts_read(self):
        call = ("bench", "-m", self.model, "-p", "512", "-n", "0", "-r", "1", "--plan", "dense", "--plan",
                "flashprefill(threshold=1,block=16,sink=1,window=1,last=1,min_len=64)", "--explain")
        dense, sparse = (json.loads(line) for line in self.good(*call, "--json").splitlines())
        self.assertEqual(dense["prompt_read_ratio"], 1)
        self.assertLess(sparse["prompt_read_ratio"], 0.9)
        share = f"read {100 * sparse['prompt_read_ratio']:.1f} % of the keys"
        self.assertEqual(self.good(*call).count(share), 1)

    def test_bench_decodes_at_a_depth_and_from_0_in_turn(self):
        call = ("bench", "-m", self.model, "-p", "0", "-n", "20", "-r", "2", "-d", "256", "--fill", "synthetic", "--plan",
                "dense", "--plan", "quest(budget=64)", "-b", "1,2")
        alone = [json.loads(line) for line in self.good(*call, "--json").splitlines()]
        turns = [json.loads(line) for line in self.good(*call, "--in-turn", "--json").splitlines()]
        for one, both in zip(alone, turns, strict=True):
            ratio = both["step_over_depth_0"]
            self.assertEqual(ratio["turns"], 2 * 2)  # repeats; 20 steps are two turns of nine and a rest
            self.assertLessEqual(ratio["p10"], ratio["median"])
            self.assertGreater(ratio["p10"], 0)
            for field in ("plan", "batch", "kv_bytes", "peak_kv_bytes", "read_tokens"):
                self.assertEqual(one[field], both[field], field)
            self.assertNotIn("step_over_depth_0", one)
        self.assertIn("of one from depth 0; 4 turns", self.good(*call, "--in-turn"))

    def test_inspect_kv_tells_the_same_as_data_and_as_a_page(self):
        call = ("inspect", "kv", "-m", self.model, "-p", "some </script> text " * 20, "-n", "5", "--ignore-eos", "--plan",
                PLAN)
        o = json.loads(self.good(*call, "--json"))
        self.assertEqual(len(o["tokens"]), o["prompt_tokens"] + 5)
        self.assertEqual([k["layer"] for k in o["kept"]], list(range(o["layers"])))
        self.assertEqual([s["token"] for s in o["steps"]], [o["prompt_tokens"] + i for i in range(1, 5)])
        for step in o["steps"]:
            for layer in step["layers"]:
                self.assertEqual(len(layer["positions"]), len(layer["weights"]))
                self.assertLess(max(layer["positions"]), step["token"])
                prompt = {p for p in layer["positions"] if p < o["prompt_tokens"]}
                self.assertLessEqual(prompt, set(o["kept"][layer["layer"]]["positions"]))
        page = self.dir / "kv.html"
        self.assertIn(str(page), self.good(*call, "-o", page))
        html = page.read_text()
        self.assertNotIn("http", html.split("<body>")[0])  # needs nothing else
        inside = html.split('<script type="application/json" id="data">')[1].split("</script>")[0]
        self.assertEqual(json.loads(inside)["steps"], o["steps"])

    def test_choices_and_token_rules(self):
        o = self.run_json("-p", "some text", "--raw", "-n", "6", "--ignore-eos", "--choices", "3", "--temp", "2")
        self.assertEqual([len(c["ids"]) for c in o["choices"]], [6, 6, 6])
        self.assertEqual(o["choices"][0]["ids"], o["ids"])
        only = self.run_json("-p", "some text", "--raw", "-n", "6", "--ignore-eos", "--allowed-ids", "40,41")
        self.assertLessEqual(set(only["ids"]), {40, 41})

    def test_a_turn_that_is_too_long_is_refused_alone(self):
        done = self.call("chat", "-m", self.model, "-c", "200", "-n", "4", text="a b\n" + "x " * 400 + "\nc d\n")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\Asparse-engine: the prompt has [^\n]+\n\Z")
        self.assertGreaterEqual(done.stdout.count("\n"), 2)  # both other turns were answered

    def test_saved_prompts_go_on_as_if_nothing_had_happened(self):
        kv = self.dir / "prompt.kv"
        for plan in ("dense", PLAN):
            args = ["--raw", "--plan", plan, "--ignore-eos"]
            first = self.run_json(*args, "-p", "a long beginning " * 20, "-n", 3, "--kv-save", kv)
            self.assertEqual(len(first["ids"]), 3)
            rest = ["-p", "and the rest", "-n", 12, "--ignore-eos", "--raw"]
            one, two = (self.run_json(*rest, "--kv-load", kv) for _ in range(2))
            self.assertEqual(one["ids"], two["ids"])
            self.assertEqual(one["usage"]["kv"]["plan"], first["usage"]["kv"]["plan"])
            self.assertEqual(one["usage"]["kv"]["logical_tokens"],
                             first["usage"]["kv"]["logical_tokens"] + 1 + len(one["prompt_ids"]) + 11)
        self.refused("run", "-m", self.model, "--kv-load", kv, "--plan", "fp8", "--kv-save", kv, "-p", "x",
                     says=["fp8", "prompt.kv", "keeps its plan"])
        self.refused("run", "-m", self.model, "--kv-load", kv, "--system", "x", "-p", "x", says=["--system"])
        self.refused("chat", "-m", self.model, "--kv-load", kv, says=["prompt.kv", "plain text"])
        self.refused("run", "-m", self.model, "--kv-load", self.dir / "none.kv", "-p", "x", says=["none.kv"])
        data = bytearray(kv.read_bytes())
        data[-100] ^= 4
        kv.write_bytes(data)
        self.refused("run", "-m", self.model, "--kv-load", kv, "-p", "x", says=["prompt.kv", "damaged"])

    def test_a_saved_dense_prompt_serves_other_plans(self):
        kv = self.dir / "dense.kv"
        beginning, rest = "a long beginning " * 20, " and the rest" * 10
        self.run_json("--raw", "-p", beginning, "-n", 0, "--kv-save", kv)
        for plan in ("dense", "quest(budget=64)", "snapkv(budget=96,sink=4,recent=32)"):
            args = ["--raw", "-n", 12, "--ignore-eos", "--plan", plan]
            got = self.run_json(*args, "-p", rest, "--kv-load", kv)
            whole = self.run_json(*args, "-p", beginning + rest)
            if len(whole["prompt_ids"]) == got["usage"]["prompt_tokens"]:  # the cut falls between two tokens
                self.assertEqual(got["ids"], whole["ids"], plan)

    def test_bench_takes_its_depth_from_a_file(self):
        kv = self.dir / "bench.kv"
        args = ["bench", "-m", self.model, "-p", 0, "-n", 4, "-r", 1, "--json", "-d", 300]
        self.good(*args, "--kv-save", kv)
        for line in self.good(*args, "--kv-load", kv, "-b", "1,3", "--plan", "dense", "--plan",
                              "quest(budget=64)").splitlines():
            row = json.loads(line)
            self.assertEqual((row["depth"], row["resident_tokens"]), (300, 304))
        self.refused(*args[:-1], 200, "--kv-load", kv, says=["holds 300", "200"])
        self.refused(*args, "--kv-load", kv, "--plan", "kivi(group=16)", says=["kivi", "dense"])
        self.refused(*args, "--kv-load", kv, "--explain", says=["--explain"])
        self.refused(*args, "--kv-save", kv, "--fill", "synthetic", says=["--kv-save"])

    def test_help_and_version(self):
        self.assertIn("run", self.good("--help"))
        self.assertIn("--plan", self.good("run", "--help"))
        self.assertRegex(self.good("--version"), r"sparse-engine \d")


class Chat(CliTest):
    def test_turns_go_on_in_one_conversation(self):
        done = self.call("chat", "-m", self.model, "-n", "6", text="one\ntwo\n/usage\n")
        self.assertEqual(done.returncode, 0)
        tokens = [int(n) for n in re.findall(r"KV: \d+ of (\d+) tokens", done.stderr)]
        alone = self.call("chat", "-m", self.model, "-n", "6", text="two\n/usage\n")
        fresh = [int(n) for n in re.findall(r"KV: \d+ of (\d+) tokens", alone.stderr)]
        self.assertEqual((len(tokens), len(fresh)), (1, 1), done.stderr + alone.stderr)
        self.assertGreater(tokens[0], fresh[0] + 6)  # the first turn is still there
        reset = self.call("chat", "-m", self.model, "-n", "6", text="one\n/reset\ntwo\n/usage\n")
        self.assertIn(f"of {fresh[0]} tokens", reset.stderr)

    def test_a_conversation_goes_on_in_another_process(self):
        kv = self.dir / "talk.kv"
        args = ["chat", "-m", self.model, "-n", 8, "--plan", PLAN]
        whole = self.good(*args, text="one\ntwo\nthree\n")
        begun = self.good(*args, "--kv-save", kv, text="one\n")
        rest = self.good("chat", "-m", self.model, "-n", 8, "--kv-load", kv, text="two\nthree\n")
        self.assertEqual(begun + rest, whole)
        self.refused("chat", "-m", self.model, "--kv-load", kv, "--plan", "dense", says=["another plan"])

    def test_a_conversation_under_a_plan(self):
        text = "word " * 200 + "\nand then\n/usage\n/quit\n"
        done = self.call("chat", "-m", self.model, "-n", "6", "--plan", PLAN, text=text)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"plan {PLAN}", done.stderr)

    def test_parts_of_an_answer(self):
        got = self.run_json("-p", "hello there", "-n", 24)
        self.assertEqual(got["parts"], [{"kind": "content", "text": got["text"]}])  # its template has no marks
        self.assertNotIn("parts", self.run_json("--raw", "-p", "hello there", "-n", 24))

    def test_ctrl_c_stops_the_answer_only(self):
        command = [ENGINE, "chat", "-m", self.model, "-n", "30000"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as chat:
            try:
                chat.stdin.write(b"hello there\n")
                chat.stdin.flush()
                self.assertTrue(chat.stdout.read(1))  # an answer that does not end by itself within 30,000 tokens
                time.sleep(0.05)
                chat.send_signal(signal.SIGINT)
                out, err = chat.communicate(b"/usage\n/quit\n", timeout=TIMEOUT)
            finally:
                chat.kill()
            self.assertEqual(chat.returncode, 0, err)
            self.assertIn(b"(cancelled)", err)
            self.assertTrue(out.endswith(b"\n"))

    def test_the_talk_goes_on_after_ctrl_c(self):
        command = [ENGINE, "chat", "-m", self.model, "-n", "600"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as chat:
            try:
                chat.stdin.write(b"tell\n")
                chat.stdin.flush()
                self.assertTrue(chat.stdout.read(1))
                chat.send_signal(signal.SIGINT)
                time.sleep(0.2)
                _, err = chat.communicate(b"and then\n/usage\n", timeout=TIMEOUT)
            finally:
                chat.kill()
            self.assertEqual(chat.returncode, 0, err)
            self.assertIn(b"plan dense", err)


def main():
    global ENGINE, TINY_MODEL
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    ENGINE, TINY_MODEL = sys.argv[1:3]
    return 0 if unittest.main(argv=[sys.argv[0], *sys.argv[3:]], exit=False).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
