#!/usr/bin/env python3
"""Makes tests/golden/smollm2: logits, greedy ids and perplexity of SmolLM2-135M-Instruct.

    python3 tools/make_smollm2_goldens.py $(scripts/fetch-model)

Needs torch (CPU), transformers, gguf, numpy; no part of any test run. The reference is
transformers in float64 (see make_goldens.py) on gguf-py's dequantized weights of the Q4_1 file.
"""

import argparse
import hashlib
import importlib.metadata
import json
import pathlib
import re

import numpy as np
import torch

import gguf_llama
from make_goldens import error, float64_everywhere
from perplexity_reference import perplexity

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEP, TOP, GENERATE = 96, 20, 64
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def chat(question: str) -> str:
    """What the file's chat template makes of one question."""
    return (f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"
            "<|im_start|>assistant\n")


# Chosen so that no greedy choice is nearly a tie; that of "count" is clear enough for int4.
PROMPTS = {
    "plain": "A pipeline of four stages is only as fast as its slowest stage, because",
    "count": "1, 2, 3, 4, 5,",
    "capital": chat("What is the capital of France?"),
    "photosynthesis": chat("What is photosynthesis?"),
}


def logits(model, ids) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def greedy(model, ids: list[int]) -> tuple[list[int], list[float], str]:
    """Ids without the end token, the margin of each choice (the end's too), why it ended."""
    out, margins = [], []
    with torch.no_grad():
        state = model(torch.tensor([ids]), use_cache=True)
        while True:
            best = state.logits[0, -1].topk(2)
            margins.append(float(best.values[0] - best.values[1]))
            if int(best.indices[0]) == 2:
                return out, margins, "stop"
            out.append(int(best.indices[0]))
            if len(out) == GENERATE:
                return out, margins, "length"
            state = model(torch.tensor([out[-1:]]), cache=state.past_key_values, use_cache=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/golden/smollm2")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    tokenizer = gguf_llama.load_tokenizer(a.model)
    single = gguf_llama.load_model(a.model)
    exact = gguf_llama.in_float64(single)
    half = gguf_llama.load_model(a.model).to(torch.bfloat16)
    golden = {
        "generator": "tools/make_smollm2_goldens.py",
        "versions": {p: importlib.metadata.version(p)
                     for p in ("torch", "transformers", "tokenizers", "gguf", "numpy")},
        "model": pathlib.Path(a.model).name,
        "model_sha256": hashlib.sha256(pathlib.Path(a.model).read_bytes()).hexdigest(),
        "columns": {"first": 0, "step": STEP}, "prompts": []}
    for name, text in PROMPTS.items():
        ids = tokenizer.encode(text).ids
        with float64_everywhere():
            want = logits(exact, ids)
            out, margins, reason = greedy(exact, ids)
        np.save(a.out / f"{name}.npy", want[:, ::STEP].float().numpy())
        top = want.topk(TOP)
        golden["prompts"].append({
            "name": name, "text": text, "tokens": ids, "logits": f"{name}.npy",
            "transformers_f32_error": error(logits(single, ids), want),
            "transformers_bf16_error": error(logits(half, ids), want),
            "logits_norm": [round(float(x), 6) for x in want.norm(dim=1)],
            "top_ids": top.indices.tolist(),
            "top_logits": [[round(float(x), 6) for x in row] for row in top.values],
            "greedy": out, "greedy_margins": [round(m, 6) for m in margins],
            "greedy_text": tokenizer.decode(out), "finish_reason": reason})
        print(name, len(ids), golden["prompts"][-1]["transformers_f32_error"],
              golden["prompts"][-1]["transformers_bf16_error"], min(margins), reason,
              repr(golden["prompts"][-1]["greedy_text"]))
    text = ROOT / "tests/golden/text/perplexity.txt"
    ids = tokenizer.encode(text.read_text()).ids
    with float64_everywhere():
        golden["perplexity"] = {"text": "tests/golden/text/perplexity.txt", "ids": ids,
                                "float64": perplexity(exact, ids)}
    golden["perplexity"]["float32"] = perplexity(single, ids)
    golden["perplexity"]["bfloat16"] = perplexity(half, ids)
    print({k: v for k, v in golden["perplexity"].items() if k != "ids"})
    flat = re.sub(r"\[[^\[\]{}\"]+\]", lambda m: "[" + " ".join(m[0][1:-1].split()) + "]",
                  json.dumps(golden, indent=1, ensure_ascii=False))
    (a.out / "golden.json").write_text(flat + "\n")


if __name__ == "__main__":
    main()
