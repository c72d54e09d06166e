#!/usr/bin/env python3
"""Writes tests/golden/rope/rope.json: inverse frequencies and attention factors as transformers computes them in float32.

Run at the root with torch and transformers installed. No part of a test run.
"""
import json
import pathlib

import torch
import transformers
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "rope" / "rope.json"
LLAMA = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 96,
         "max_position_embeddings": 131072, "rope_theta": 500000.0}
PHI3 = {"model_type": "phi3", "hidden_size": 384, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 96,
        "max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "rope_theta": 10000.0, "pad_token_id": 0, "eos_token_id": 1}


def scaled(**scaling):
    return {**LLAMA, "rope_scaling": scaling}


def factors(n, low, high):
    return [round(low + (high - low) * (i / (n - 1)) ** 2, 4) for i in range(n)]


CASES = {
    "plain": {**LLAMA, "rope_scaling": None},
    "plain, odd base": {**LLAMA, "rope_theta": 100000, "hidden_size": 256, "rope_scaling": None},
    "linear": scaled(rope_type="linear", factor=3.0),
    "llama3": scaled(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192),
    "llama3, rope_parameters": {k: v for k, v in scaled().items() if k not in ("rope_scaling", "rope_theta")}
    | {"rope_parameters": dict(rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)},
    "yarn": scaled(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768),
    "yarn, old key": scaled(type="yarn", factor=4.0, original_max_position_embeddings=32768),
    "yarn, mscale": scaled(rope_type="yarn", factor=40.0, original_max_position_embeddings=4096, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=0.8),
    "yarn, not truncated": scaled(rope_type="yarn", factor=32.0, original_max_position_embeddings=4096, beta_fast=32.0, beta_slow=1.0, truncate=False),
    "yarn, attention factor": scaled(rope_type="yarn", factor=4.0, original_max_position_embeddings=2048, attention_factor=1.5),
    "longrope": {**PHI3, "rope_scaling": {"type": "longrope", "short_factor": factors(48, 1.0, 2.5), "long_factor": factors(48, 1.0, 60.0)}},
    "longrope, a part of each head": {**PHI3, "partial_rotary_factor": 0.75, "rope_scaling": {"type": "longrope", "short_factor": factors(36, 1.0, 1.2), "long_factor": factors(36, 1.0, 40.0)}},
}


def numbers(tensor):
    return [float(x) for x in tensor.tolist()]


def main():
    cases = []
    for name, text in CASES.items():
        config = (Phi3Config if text["model_type"] == "phi3" else LlamaConfig)(**json.loads(json.dumps(text)))
        kind = config.rope_parameters["rope_type"]
        if kind == "default":
            dim = config.hidden_size // config.num_attention_heads
            base = config.rope_parameters["rope_theta"]
            short, scale, long = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.float) / dim)), 1.0, None
        else:
            compute = ROPE_INIT_FUNCTIONS[kind]
            short, scale = compute(config, "cpu")
            long = compute(config, "cpu", seq_len=4097)[0] if kind == "longrope" else None
        cases.append({"name": name, "config": text, "inverse_frequencies": numbers(short), "long_inverse_frequencies": numbers(long) if long is not None else [], "scale": float(scale)})
    OUT.parent.mkdir(parents=True, exist_ok=True)
    head = {"generator": "tools/make_rope_goldens.py", "transformers": transformers.__version__, "torch": torch.__version__}
    OUT.write_text(json.dumps({**head, "cases": cases}, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
