#!/usr/bin/env python3
"""How far float32 is from float64 on random models: penstock, and the reference itself in float32.

    python3 tools/check_kimi_errors.py build/release/penstock [--model kimi_k3] [--seeds 1 2 3]
        [--tokens 40] [--reads 0.1]

Makes models of the shapes of tools/make_kimi_goldens.py from other seeds, and prints per model the
largest difference of logits over the largest logit and the worst tensor's gradient (L2 norm over L2
norm), of `penstock logits` and `gradients` with float32 weights and of tools/kimi_reference.py in
float32, both against the reference in float64. --reads scales the queries of depth reads. Needs
torch (CPU), safetensors and numpy from PyPI; no part of any test run.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import safetensors.torch
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import kimi_reference  # noqa: E402
import make_kimi_goldens as goldens  # noqa: E402


def weights_of(text, model, seed, reads):
    goldens.SEED = seed
    out = {}
    for name, shape in goldens.shapes(text).items():
        value = goldens.random_tensor(text, model, name, shape)
        if name.endswith("res_proj.weight"):
            value = value * reads
        out[name] = value.to(goldens.stored_type(name))
    return out


def clear_prompt(text, wide, model, seed, tokens):
    """Of a few random prompts the one whose routers choose most clearly, and its logits."""
    reference = kimi_reference.Model(text, wide)
    best = None
    for attempt in range(6):
        ids = goldens.generator(model, "errors", seed, attempt).integers(2, goldens.VOCABULARY, tokens)
        with torch.no_grad():
            logits = reference.logits(torch.from_numpy(ids))
        if best is None or reference.margin > best[2]:
            best = (torch.from_numpy(ids), logits, reference.margin)
    return best


def largest(got, want):
    return ((got.double() - want).abs().max() / want.abs().max()).item()


def worst(got, want):
    return max(((got[k].double().reshape(-1)[:v.numel()] - v.reshape(-1)).norm() / v.norm()).item()
               for k, v in want.items() if v.norm() > 0)


def check(options, seed, folder):
    config = goldens.MODELS[options.model]
    text = config.get("text_config", config)
    prefix = "language_model." if "text_config" in config else ""
    stored = weights_of(text, options.model, seed, options.reads)
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.torch.save_file({prefix + k: v.contiguous() for k, v in stored.items()},
                                folder / "model.safetensors", {"format": "pt"})
    wide = {k: v.double() for k, v in stored.items()}
    ids, logits, margin = clear_prompt(text, wide, options.model, seed, options.tokens)
    single = {k: v.float() for k, v in stored.items()}
    with torch.no_grad():
        single_logits = kimi_reference.Model(text, single).logits(ids)
    _, want = goldens.gradients(text, wide, ids)
    _, single_gradients = goldens.gradients(text, single, ids)

    def run(verb, file, *flags):
        command = [options.penstock, verb, "-m", folder, "--weights", "f32", "--tokens",
                   ",".join(map(str, ids.tolist())), "-o", folder / file, *flags]
        subprocess.run(command, check=True, capture_output=True)

    run("logits", "logits.npy", "--kv", "f32")
    run("gradients", "gradients.safetensors")
    got = torch.from_numpy(np.load(folder / "logits.npy")).reshape(logits.shape)
    gradients = safetensors.torch.load_file(folder / "gradients.safetensors")
    gradients = {k.removeprefix(prefix): v for k, v in gradients.items()}
    print(f"{options.model} seed {seed} router margin {margin:.1e}: logits {largest(got, logits):.1e} "
          f"(reference in float32 {largest(single_logits, logits):.1e}), gradients "
          f"{worst(gradients, want):.1e} ({worst(single_gradients, want):.1e})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("penstock")
    parser.add_argument("--model", default="kimi_k3", choices=sorted(goldens.MODELS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(1, 6)))
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--reads", type=float, default=1.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            check(options, seed, pathlib.Path(folder))


if __name__ == "__main__":
    main()
