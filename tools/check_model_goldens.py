#!/usr/bin/env python3
"""Prints how far `penstock logits` is from the goldens, per model and type of weights.

    python3 tools/check_model_goldens.py --penstock build/release/penstock [--weights f32,bf16,int8]

Needs numpy. The tests compare against limits (tests/golden/model_goldens_test.cc); this prints the
errors themselves (L2 over L2, the larger of the two prompts) beside those of transformers.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import numpy as np

MODELS = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/models"


def logits(penstock: str, model: pathlib.Path, tokens: list[int], flags: list[str]):
    """The logits, or the last line that the command wrote to standard error."""
    with tempfile.TemporaryDirectory() as work:
        file = f"{work}/logits.npy"
        done = subprocess.run([penstock, "logits", "-m", str(model), "--tokens",
                               ",".join(map(str, tokens)), "-o", file, *flags],
                              capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            return f"exit status {done.returncode}: {lines[-1]}"
        return np.load(file).astype(np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--weights", default="f32,bf16,int8")
    parser.add_argument("--flags", default="", help="further flags of penstock logits, one string")
    parser.add_argument("names", nargs="*", metavar="NAME")
    a = parser.parse_args()
    print("| model | weights | penstock | transformers |")
    print("|---|---|---|---|")
    for file in sorted(MODELS.glob("*/golden.json")):
        name = file.parent.name
        golden = json.loads(file.read_text())
        if "prompts" not in golden or (a.names and name not in a.names):
            continue
        sources = [(name, file.parent)]
        if "gguf" in golden:
            sources.append((f"{name}.gguf", (file.parent / golden["gguf"]).resolve()))
        for weights in a.weights.split(","):
            for shown, model in sources:
                errors, problem = [0.0], ""
                for prompt in golden["prompts"]:
                    got = logits(a.penstock, model, prompt["tokens"],
                                 ["--weights", weights, *a.flags.split()])
                    if isinstance(got, str):
                        problem = got
                        continue
                    want = np.load(file.parent / prompt["logits"]).astype(np.float64)
                    errors.append(np.linalg.norm(got - want) / np.linalg.norm(want))
                key = f"transformers_{weights}_error"
                theirs = max((p.get(key, 0.0) for p in golden["prompts"]))
                print(f"| {shown} | {weights} | {problem or f'{max(errors):.1e}'} | {f'{theirs:.1e}' if theirs else '-'} |",
                      flush=True)


if __name__ == "__main__":
    main()
