#!/usr/bin/env python3
"""Perplexity of a text by transformers, from a Llama GGUF file's dequantized weights.

    python3 tools/perplexity_reference.py ~/.cache/penstock/models/SmolLM2-135M-Instruct.Q4_1.gguf \\
        tests/golden/text/perplexity.txt [--dtype float64|float32|bfloat16]

Needs torch (CPU), transformers, gguf, numpy. The whole text is one sequence without BOS. `tokens`
counts all ids but the first; nll_per_token is the mean over these of the negative natural logarithm
of the probability of an id after those before it. Prints one JSON object.
"""

import argparse
import json
import math
import pathlib

import torch

import gguf_llama
from make_goldens import float64_everywhere


def negative_log_likelihoods(model, ids: list[int]) -> torch.Tensor:
    """Per id but the first; logits are made a few hundred rows at a time and reduced in float64."""
    with torch.no_grad():
        hidden = model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
        parts = []
        for start in range(0, len(ids) - 1, 256):
            rows = model.lm_head(hidden[start:start + 256]).double().log_softmax(-1)
            next_ids = torch.tensor(ids[start + 1:start + 257])
            rows = rows[:len(next_ids)]
            parts.append(-rows.gather(1, next_ids[:, None])[:, 0])
    return torch.cat(parts)


def perplexity(model, ids: list[int]) -> dict:
    nll = float(negative_log_likelihoods(model, ids).mean())
    return {"tokens": len(ids) - 1, "nll_per_token": nll, "perplexity": math.exp(nll)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--dtype", choices=("float64", "float32", "bfloat16"), default="float32")
    a = parser.parse_args()
    model = gguf_llama.load_model(a.model)
    ids = gguf_llama.load_tokenizer(a.model).encode(a.text.read_text()).ids
    if a.dtype == "float64":
        model = gguf_llama.in_float64(model)
        with float64_everywhere():
            out = perplexity(model, ids)
    else:
        out = perplexity(model.to(getattr(torch, a.dtype)), ids)
    print(json.dumps({"dtype": a.dtype, **out}))


if __name__ == "__main__":
    main()
