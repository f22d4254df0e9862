#!/usr/bin/env python3
"""`sparse-engine inspect model` from outside: its facts, for a GGUF file and for the same model as a folder.

    inspect_test.py ENGINE TINY_MODEL [unittest options]

Standard library only."""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "malformed"))
from folder import files_of  # noqa: E402
from gguf_file import Gguf  # noqa: E402

ENGINE, TINY_MODEL = "", ""
PLAN = "snapkv(budget=96,sink=4,recent=32)+quest(budget=64)"
TOKEN_BYTES = 3 * 2 * 2 * 16 * 4  # layers, K and V, heads, channels, F32


class InspectTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.gguf, cls.folder = Path(cls.temporary.name) / "tiny.gguf", Path(cls.temporary.name) / "tiny"
        subprocess.run([TINY_MODEL, cls.gguf], check=True)
        cls.folder.mkdir()
        pipelines = json.loads(Path("tests/goldens/text/pipelines.json").read_text())
        for name, data in files_of(Gguf(cls.gguf.read_bytes()), pipelines["gpt-2"]).items():
            (cls.folder / name).write_bytes(data)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def call(self, *args):
        return subprocess.run([ENGINE, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=120, check=False)

    def good(self, *args):
        done = self.call(*args)
        self.assertEqual((done.returncode, done.stderr), (0, ""), args)
        return done.stdout

    def ids(self, path, *args):
        return json.loads(self.good("run", "-m", path, "-p", "the cat", "-n", "12", "--raw", "--compute", "exact",
                                    "--json", *args))["ids"]

    def facts(self, path, *args):
        return json.loads(self.good("inspect", "model", path, "--json", *args))

    def test_both_containers_tell_the_same(self):
        one, other = self.facts(self.gguf), self.facts(self.folder)
        self.assertEqual((one["container"], other["container"]), ("GGUF 3", "safetensors"))
        for key in ("architecture", "parameters", "weight_bytes", "weight_types", "kv"):
            self.assertEqual(one[key], other[key], key)
        self.assertAlmostEqual(one["shape"].pop("norm_eps"), other["shape"].pop("norm_eps"), delta=1e-12)  # F32
        self.assertEqual(one["shape"]["rope"].pop("interleaved"), True)
        self.assertEqual(other["shape"]["rope"].pop("interleaved"), False)
        self.assertEqual(one["shape"], other["shape"])
        self.assertEqual(one["tokenizer"]["tokens"], 300)
        self.assertEqual(one["tokenizer"]["end_ids"], [2])
        self.assertEqual(other["tokenizer"]["end_ids"], [2, 0])
        self.assertNotIn("error", one["tokenizer"])
        self.assertNotIn("error", other["tokenizer"])

    def test_both_containers_answer_the_same(self):
        answers = [self.ids(path, "--temp", "0") for path in (self.gguf, self.folder)]
        self.assertEqual(answers[0], answers[1])

    def test_sampling_starts_from_what_the_folder_recommends(self):
        said = json.loads((self.folder / "generation_config.json").read_text())
        self.assertGreater(said["temperature"], 0)
        flags = {"temperature": "--temp", "top_k": "--top-k", "top_p": "--top-p", "min_p": "--min-p",
                 "repetition_penalty": "--repetition-penalty"}
        spelled = [x for key, flag in flags.items() if key in said for x in (flag, said[key])]
        self.assertEqual(self.ids(self.folder), self.ids(self.folder, *spelled))
        self.assertEqual(self.ids(self.folder), self.ids(self.gguf, *spelled))
        self.assertEqual(self.ids(self.gguf), self.ids(self.gguf, "--temp", "0"))  # a file that says nothing

    def test_memory_is_what_the_plan_costs(self):
        kv = self.facts(self.gguf, "-c", "512,4k", "--plan", "dense", "--plan", PLAN)["kv"]
        self.assertEqual(kv["bytes_per_token"], TOKEN_BYTES)
        self.assertEqual([[c["tokens"] for c in p["contexts"]] for p in kv["plans"]], [[512, 4096]] * 2)
        dense, sparse = (p["contexts"][1] for p in kv["plans"])
        self.assertGreaterEqual(dense["resident_bytes"], 4095 * TOKEN_BYTES)
        self.assertLess(dense["resident_bytes"], 4095 * TOKEN_BYTES * 1.05)
        self.assertLess(sparse["resident_tokens"], 110)
        self.assertLess(sparse["resident_bytes"], dense["resident_bytes"] / 10)

    def test_tensors_are_listed(self):
        tensors = self.facts(self.folder, "--tensors")["tensors"]
        self.assertEqual(len(tensors), 29)
        query = next(t for t in tensors if t["name"] == "blk.1.attn_q.weight")
        self.assertEqual((query["stored_as"], query["shape"], query["type"]),
                         ("model.layers.1.self_attn.q_proj.weight", [64, 64], "f32"))
        text = self.good("inspect", "model", self.gguf, "--tensors")
        for part in ("blk.2.ffn_up.weight", "[128, 64]", "Tiny Llama", "4 query heads, 2 KV heads", "300 tokens",
                     "<|im_end|>", "read a step"):
            self.assertIn(part, text)

    def test_a_tokenizer_that_cannot_be_used_is_a_fact(self):
        (self.folder / "tokenizer.json").rename(self.folder / "away")
        try:
            self.assertIn("tokenizer.json", self.facts(self.folder)["tokenizer"]["error"])
            self.assertIn("tokenizer.json", self.good("inspect", "model", self.folder))
        finally:
            (self.folder / "away").rename(self.folder / "tokenizer.json")

    def test_refusals_are_one_line(self):
        for args, says in (((self.gguf, "--plan", "qest"), "quest"), ((self.gguf, "-c", "0"), "0"),
                           ((self.gguf, "-c", "1m"), "32768"), ((self.gguf, "-c", "x"), "x"),
                           ((self.gguf.parent / "none",), "none"), ((self.gguf.parent,), "config.json")):
            done = self.call("inspect", "model", *args)
            self.assertEqual((done.returncode, done.stdout), (1, ""), args)
            self.assertRegex(done.stderr, r"\Asparse-engine: [^\n]+\n\Z")
            self.assertIn(says, done.stderr)


if __name__ == "__main__":
    ENGINE, TINY_MODEL = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
