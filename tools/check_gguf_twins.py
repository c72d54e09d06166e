#!/usr/bin/env python3
"""Runs the GGUF twins of tests/golden/models in llama.cpp and prints how far its logits are.

    python3 tools/check_gguf_twins.py [--limit 2e-5] [NAME ...]

Needs llama-cpp-python (see llama_cpp_api.py), gguf and numpy. A check of the goldens, not a test
of Penstock: llama.cpp rounds activations to the matrices' 16-bit type, so each twin is first
rewritten with float32 matrices; what remains is float32 rounding, and in Gemma llama.cpp's GELU,
which is a table of 16-bit values (4e-4). Exit status 1 above the limit (fifty times that for Gemma).
"""

import argparse
import json
import pathlib
import sys
import tempfile

import numpy as np

import llama_cpp_api
from requantize_gguf import requantize

# llama.cpp runs Phi-3 without its window, and chooses LongRoPE's factors by the context's size.
SKIPPED = {("phi3", "long"), ("phi3-longrope", "short")}
MODELS = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/models"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--limit", type=float, default=2e-5)
    a = parser.parse_args()
    worst = 0.0
    for file in sorted((MODELS / "gguf").glob("*.gguf")):
        if a.names and file.stem not in a.names:
            continue
        golden = json.loads((MODELS / file.stem / "golden.json").read_text())
        with tempfile.TemporaryDirectory() as work:
            wide = pathlib.Path(work) / file.name
            requantize(file, wide, "F32")
            model = llama_cpp_api.Model(str(wide), threads=1, context=256, f32_cache=True)
            for prompt in golden["prompts"]:
                if (file.stem, prompt["name"]) in SKIPPED:
                    continue
                model.clear()
                model.decode([(t, i, 0, True) for i, t in enumerate(prompt["tokens"])])
                got = np.stack([model.logits(i) for i in range(len(prompt["tokens"]))])
                want = np.load(MODELS / file.stem / prompt["logits"])
                error = float(np.linalg.norm(got - want) / np.linalg.norm(want))
                worst = max(worst, error / 50 if "gemma" in file.stem else error)
                print(f"{file.stem:16} {prompt['name']:6} {error:.1e}")
            model.close()
    sys.exit(worst > a.limit)


if __name__ == "__main__":
    main()
