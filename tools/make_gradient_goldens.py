#!/usr/bin/env python3
"""Makes tests/golden/gradients: float64 gradients of the tiny models, as small fingerprints.

    OMP_NUM_THREADS=1 python3 tools/make_gradient_goldens.py [--out tests/golden/gradients] [NAME ...]

Needs torch (CPU), transformers, safetensors and numpy from PyPI; no part of any test run. Runs
transformers' code in float64 as tools/make_goldens.py does, with autograd. Three sequences of
unequal length; the loss is the mean cross-entropy of every next token. Per tensor (by the names of
the folder): the L2 norm of its gradient and its products with PROJECTIONS vectors of pseudo-random
numbers in [-1, 1), so that the norm of any error can be estimated without the gradient itself.
"""

import argparse
import copy
import json
import pathlib
import sys
import tempfile

import numpy as np
import safetensors.numpy
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from golden_families import FAMILIES  # noqa: E402
from make_goldens import float64_everywhere, in_float64, load  # noqa: E402

PROJECTIONS = 6


def mixed(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer (Steele, Lea and Flood 2014)."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def projection(size: int, number: int) -> np.ndarray:
    """Vector `number`: element i from the top 53 bits of mixed(i + number * 2^40)."""
    index = np.arange(size, dtype=np.uint64) + np.uint64(number << 40)
    return (mixed(index) >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0


def sequences(folder: pathlib.Path) -> list[list[int]]:
    """The golden prompts (routers choose clearly on them), and a beginning of the second."""
    prompts = [p["tokens"] for p in json.loads((folder / "golden.json").read_text())["prompts"]]
    return [prompts[0], prompts[1], prompts[1][: max(2, len(prompts[1]) // 3)]]


def gradients(folder: pathlib.Path) -> tuple[float, dict[str, np.ndarray]]:
    """The loss, and the gradients under the names that transformers saves."""
    model = in_float64(load(folder, torch.float32))
    data = sequences(folder)
    counted = sum(len(s) - 1 for s in data)
    total = 0.0
    with float64_everywhere():
        for ids in data:
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum")
            (loss / counted).backward()
            total += float(loss.detach())
    carrier = copy.deepcopy(model)
    for own, of in zip(carrier.parameters(), model.parameters()):
        own.data = torch.zeros_like(of) if of.grad is None else of.grad
    tensors = {}
    with tempfile.TemporaryDirectory() as work:
        carrier.save_pretrained(work)
        for file in pathlib.Path(work).glob("*.safetensors"):
            tensors |= safetensors.numpy.load_file(file)
    return total / counted, tensors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/golden/gradients"))
    parser.add_argument("--models", type=pathlib.Path, default=pathlib.Path("tests/golden/models"))
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or FAMILIES:
        folder = options.models / name
        loss, tensors = gradients(folder)
        golden = {
            "generator": "tools/make_gradient_goldens.py",
            "model": name,
            "tokens": sequences(folder),
            "loss": loss,
            "gradients": {
                key: {
                    "norm": float(np.linalg.norm(value)),
                    "projections": [float(projection(value.size, k) @ value.ravel())
                                    for k in range(PROJECTIONS)],
                }
                for key, value in sorted(tensors.items())
            },
        }
        (options.out / f"{name}.json").write_text(json.dumps(golden, indent=None,
                                                             separators=(",", ":")) + "\n")
        print(f"{name}: loss {loss:.6f}, {len(tensors)} tensors")


if __name__ == "__main__":
    main()
