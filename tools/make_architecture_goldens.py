#!/usr/bin/env python3
"""Makes the folders of tests/golden/models whose names start with "arch-": a tiny random model per
variation of the decoder, with float64 logits, loss and gradients of a plain PyTorch reference.

    python3 tools/make_architecture_goldens.py [--out tests/golden/models] [NAME ...]

Needs torch (CPU), safetensors and numpy from PyPI; no part of any test run. Per folder: config.json
and model.safetensors as Penstock reads them, `short.npy` and `long.npy` (float32 [tokens,
vocabulary]), `golden.json` in the form of make_goldens.py, `gradients.safetensors` (float32, by
tensor name) of the loss over both prompts.
"""

import argparse
import importlib.metadata
import json
import pathlib
import platform
import re
import sys

import numpy as np
import safetensors.torch
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from architecture_reference import Decoder, shapes  # noqa: E402

SEED = 20261130
GREEDY_MARGIN = 2e-3


def config(**keys):
    base = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=67,
                hidden_size=16, intermediate_size=24, num_hidden_layers=4, num_attention_heads=4,
                num_key_value_heads=2, hidden_act="silu", max_position_embeddings=256,
                rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, bos_token_id=1,
                eos_token_id=2, torch_dtype="float32")
    return base | keys


MODELS = {
    # Blocks of three sublayers: every other one ends between attention and MLP, the last is shorter.
    "arch-attnres-block": config(
        num_hidden_layers=5,
        attention_residuals={"residual": "block", "block_size": 3, "key_norm_weight": True,
                             "output": "attend"}),
    # Blocks of unequal size, the sum of the sources at the end, norms on q and k.
    "arch-attnres-uneven": config(
        model_type="qwen3", head_dim=6,
        attention_residuals={"residual": "block", "block_size": [1, 4, 2, 1],
                             "key_norm_weight": False, "output": "sum"}),
    "arch-attnres-full": config(
        tie_word_embeddings=True,
        attention_residuals={"residual": "full", "key_norm_weight": False}),
    # U-shaped.
    "arch-skips": config(num_hidden_layers=6, skip_connections=[[0, 5], [1, 4], [2, 3], [0, 3]]),
    "arch-streams-static": config(hyper_connections={"streams": 4, "mode": "static"}),
    "arch-streams-dynamic": config(num_hidden_layers=3,
                                   hyper_connections={"streams": 3, "mode": "dynamic"}),
    # Two layers' weights, each at three depths; a tied head beside.
    "arch-shared": config(num_hidden_layers=6, shared_layers=[0, 1, 0, 1, 0, 1],
                          tie_word_embeddings=True),
    "arch-parallel": config(use_parallel_residual=True),
    "arch-per-layer": config(per_layer_embeddings={"width": 6}),
    "arch-exits": config(num_hidden_layers=5, tie_word_embeddings=True,
                         early_exits={"layers": [1, 3], "loss_weight": 0.25}),
    "arch-exits-own": config(
        early_exits={"layers": [0, 2], "loss_weight": 0.5, "head": "own"},
        attention_residuals={"residual": "block", "block_size": 4, "key_norm_weight": True}),
    "arch-next-tokens": config(num_nextn_predict_layers=2, mtp_loss_weight=0.4),
}


def generator(*parts):
    import hashlib
    digest = hashlib.sha256("/".join(map(str, (SEED, *parts))).encode()).digest()
    return np.random.Generator(np.random.Philox(int.from_bytes(digest[:8], "little")))


def random_tensor(name, key, shape, c):
    draw = generator(name, key).standard_normal(shape)
    d = c["hidden_size"]
    if key.endswith(".base"):  # each stream to itself, and all take the output
        n = shape[0]
        plain = np.concatenate([np.full((n, 1), 1.0 / n), np.eye(n), np.ones((n, 1))], 1)
        return plain + 0.2 * draw
    if key.endswith(".scale"):
        return 0.5 + 0.1 * draw
    if "norm" in key:
        return 1.0 + 0.3 * np.clip(draw, -2.5, 2.5)
    if "embed" in key:
        return draw * (2.2 / d**0.5 if c["tie_word_embeddings"] else 1.0)
    if "lm_head" in key or "exit_head" in key:
        return draw * 1.6 / d**0.5
    if "_res_proj" in key:
        return draw * 0.25
    gain = {"o_proj": 1.3, "down_proj": 1.3, "mix": 0.5}
    return draw * gain.get(key.split(".")[-1 if key.endswith("mix") else -2], 1.0) / shape[-1]**0.5


def error(got, want):
    return float((got.double() - want).norm() / want.norm())


def run(c, weights, ids, dtype=torch.float64):
    with torch.no_grad():
        return Decoder(c, {k: w.to(dtype) for k, w in weights.items()}).logits(torch.tensor(ids))


def greedy(c, weights, ids):
    out, margins = [], []
    while len(out) < 24:
        best = run(c, weights, ids + out)[-1].topk(2)
        margin = float(best.values[0] - best.values[1])
        if margin < GREEDY_MARGIN:
            break
        margins.append(margin)
        out.append(int(best.indices[0]))
    return {"greedy": out, "greedy_margin_min": min(margins)}


def gradients(c, weights, sequences, dtype):
    leaves = {k: w.to(dtype).requires_grad_() for k, w in weights.items()}
    loss = Decoder(c, leaves).loss([torch.tensor(ids) for ids in sequences])
    loss.backward()
    return float(loss.detach()), {k: torch.zeros_like(w) if w.grad is None else w.grad
                                  for k, w in leaves.items()}


def make(out, name, c):
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*"):
        old.unlink()
    weights = {k: torch.from_numpy(np.asarray(random_tensor(name, k, s, c))).float()
               for k, s in sorted(shapes(c).items())}
    (folder / "config.json").write_text(json.dumps(c, indent=2) + "\n")
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    prompts = []
    for kind, tokens in (("short", 9), ("long", 37)):
        ids = generator(name, "prompt", kind).integers(3, c["vocab_size"], tokens).tolist()
        want = run(c, weights, ids)
        np.save(folder / f"{kind}.npy", want.float().numpy())
        prompts.append({"name": kind, "tokens": ids, "logits": f"{kind}.npy",
                        "reference_f32_error": error(run(c, weights, ids, torch.float32), want),
                        "transformers_bf16_error":
                            error(run(c, weights, ids, torch.bfloat16), want)})
        if kind == "short":
            prompts[-1] |= greedy(c, weights, ids)
    sequences = [p["tokens"] for p in prompts]
    loss, exact = gradients(c, weights, sequences, torch.float64)
    _, single = gradients(c, weights, sequences, torch.float32)
    safetensors.torch.save_file({k: g.float().contiguous() for k, g in exact.items()},
                                folder / "gradients.safetensors", {"format": "pt"})
    worst = max(error(single[k], g) for k, g in exact.items() if float(g.norm()) > 0)
    joined = [torch.cat([g[k].double().flatten() for k in exact]) for g in (single, exact)]
    total = error(*joined)
    golden = {"generator": "tools/make_architecture_goldens.py",
              "versions": {"python": platform.python_version(), "torch": torch.__version__,
                           "safetensors": importlib.metadata.version("safetensors"),
                           "numpy": np.__version__},
              "seed": SEED, "model": name, "family": c["model_type"],
              "parameters": sum(w.numel() for w in weights.values()), "loss": loss,
              "gradient_f32_error": total, "gradient_f32_error_max": worst, "prompts": prompts}
    text = re.sub(r"\[[\s\d,]+\]", lambda m: " ".join(m[0].split()).replace("[ ", "[").replace(
        " ]", "]"), json.dumps(golden, indent=1))
    (folder / "golden.json").write_text(text + "\n")
    print(f"{name:22} loss {loss:.4f} f32 {prompts[1]['reference_f32_error']:.1e} bf16 "
          f"{prompts[1]['transformers_bf16_error']:.1e} gradients f32 {total:.1e} {worst:.1e} greedy "
          f"{len(prompts[0]['greedy'])}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/golden/models")
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    for name in arguments.names or MODELS:
        make(arguments.out, name, MODELS[name])


if __name__ == "__main__":
    main()
