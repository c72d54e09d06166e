#!/usr/bin/env python3
"""Holds an exported folder to Hugging Face transformers: ids of texts in many scripts, and the logits of a text.

Usage: tools/check_export.py FOLDER [PENSTOCK]. PENSTOCK is the binary (build/dev/penstock). Needs torch and transformers.
Fails on one id that differs, or where logits differ by more than 1e-3 of their norm."""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers

TEXTS = [
    "Hello, world! It's 12345 o'clock; 3.14159 and 1,000,000.", "  two  spaces\n\nand\ttabs \r\n   x", "déjà vu — naïve façade",
    "Привет, как дела?", "你好，世界。こんにちは、カタカナ", "안녕하세요 세계", "مرحبا بالعالم، كيف حالك؟", "नमस्ते दुनिया", "สวัสดีชาวโลก",
    "שלום עולם", "Γειά σου Κόσμε", "👩‍👩‍👧 emoji 🏳️‍🌈 𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "int main() { return 0; } // <|im_start|>user", "a" * 300,
    "<|im_start|>system\nHi<|im_end|>\n", "I'LL don't we'Ve THEY'RE", "\u00a0non-breaking\u2003em\u200bzero", "ﬁ ligature Å Å",
]


def penstock(binary, *words, stdin=None):
    done = subprocess.run([binary, *words], input=stdin, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: {done.stderr.decode()}")
    return done.stdout


def main():
    folder = pathlib.Path(sys.argv[1])
    binary = sys.argv[2] if len(sys.argv) > 2 else "build/dev/penstock"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = TEXTS + [p.read_text(errors="ignore")[:20000] for p in map(pathlib.Path, sys.argv[3:])]
    ids, differing = 0, 0
    for text in texts:
        ours = json.loads(penstock(binary, "tokenize", "-m", str(folder), "--json", stdin=text.encode()))["ids"]
        theirs = tokenizer(text)["input_ids"]
        ids += len(theirs)
        differing += ours != theirs
        if ours != theirs:
            print(f"ids differ for {text[:60]!r}:\n  {ours[:20]}\n  {theirs[:20]}")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = tokenizer("The license of a program says what may be done with it.")["input_ids"][:40]
    with torch.no_grad():
        want = model(torch.tensor([tokens])).logits[0].numpy()
    with tempfile.NamedTemporaryFile(suffix=".npy") as out:
        penstock(binary, "logits", "-m", str(folder), "--tokens", ",".join(map(str, tokens)), "--weights", "f32", "-o", out.name)
        got = numpy.load(out.name)
    error = numpy.linalg.norm(got - want) / numpy.linalg.norm(want)
    chat = ""
    if tokenizer.chat_template:
        chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True)
    print(f"{len(texts)} texts, {ids} ids, {differing} texts with differing ids; logits differ by {error:.2e} of their norm; "
          f"chat template {'renders ' + repr(chat[-40:]) if chat else 'none'}")
    return 1 if differing or error > 1e-3 else 0


if __name__ == "__main__":
    sys.exit(main())
