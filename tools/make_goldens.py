#!/usr/bin/env python3
"""Makes tests/golden/models: a tiny random checkpoint per family, with its float64 logits.

    python3 tools/make_goldens.py [--out tests/golden/models] [NAME ...]

Needs torch (CPU), transformers, safetensors, numpy and gguf from PyPI; no part of any test run.
Per folder: config.json and safetensors as on Hugging Face, `short.npy` and `long.npy` (float32,
[tokens, vocabulary]: the logits of a float64 run) and `golden.json` (prompt ids, versions, how far
transformers' own float32 and bf16 runs are from the float64 one, margins). GGUF twins of the same
weights go into `gguf/`.

The float64 run is transformers' own code with every "float32" that it names replaced by float64
(its norms, softmaxes, rotary angles and routers otherwise round to float32 even in a float64
model).
"""

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import pathlib
import platform
import re
import sys
import tempfile

import gguf
import numpy as np
import safetensors
import safetensors.torch
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import golden_gguf  # noqa: E402
from golden_families import FAMILIES, Family  # noqa: E402

SEED = 20261130
STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# A router's choice must be clear, or rounding flips it and logits move by 8 to 59 %: the smallest
# difference between the last chosen and the first rejected router logit that a prompt may have.
ROUTER_MARGIN = 0.25
GREEDY_MARGIN = 2e-3


@contextlib.contextmanager
def float64_everywhere():
    """Within it, what transformers' modelling code calls float32 is float64."""
    saved = torch.float32, torch.float, torch.Tensor.float, torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double
    torch.float32 = torch.float = torch.float64
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = saved[:3]
        torch.set_default_dtype(saved[3])


def generator(*parts) -> np.random.Generator:
    """A generator that depends on the parts alone."""
    digest = hashlib.sha256("/".join(map(str, (SEED, *parts))).encode()).digest()
    return np.random.Generator(np.random.Philox(int.from_bytes(digest[:8], "little")))


def random_tensor(family: Family, name: str, key: str, shape) -> torch.Tensor:
    """Values for one tensor: matrices scaled so that scores and logits spread, norms around 1."""
    draw = generator(name, key).standard_normal(shape)
    part = key.split(".")[-2] if key.count(".") else key
    gemma = family.config["model_type"].startswith("gemma")
    width = family.config["hidden_size"]
    if key.endswith("bias"):
        value = 0.4 * draw
    elif "norm" in part:
        value = 0.3 * np.clip(draw, -2.5, 2.5) + (0.0 if gemma else 1.0)
        if gemma and part.startswith("post_"):
            value += 1.2
    elif part == "embed_tokens":
        tied = family.config.get("tie_word_embeddings", gemma)
        value = draw * (2.2 / width**0.5 if tied else 1.0)
    elif part == "lm_head":
        value = draw * 2.4 / width**0.5
    else:
        gain = {"q_proj": 1.4, "k_proj": 1.4, "qkv_proj": 1.4, "o_proj": 1.6, "down_proj": 1.6,
                "w2": 1.6, "gate": 2.0}.get(part, 1.2)
        value = draw * gain / shape[-1] ** 0.5
    tensor = torch.from_numpy(value)
    if len(shape) > 1 and family.grid:
        tensor = tensor.to(STORED[family.grid])
    return tensor.to(STORED[family.dtype])


def write_folder(folder: pathlib.Path, name: str, family: Family) -> None:
    """Writes config.json and the weights; names and shapes are those that transformers saves."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*"):
        old.unlink()
    (folder / "config.json").write_text(json.dumps(family.config, indent=2) + "\n")
    config = transformers.AutoConfig.from_pretrained(folder)
    probe = transformers.AutoModelForCausalLM.from_config(config)
    probe.save_pretrained(folder / "probe")
    shapes = {}
    for file in sorted((folder / "probe").glob("*.safetensors")):
        with safetensors.safe_open(file, "pt") as part:
            shapes |= {key: part.get_slice(key).get_shape() for key in part.keys()}
    for file in (folder / "probe").glob("*"):
        file.unlink()
    (folder / "probe").rmdir()
    tensors = {key: random_tensor(family, name, key, shape)
               for key, shape in sorted(shapes.items())}
    if family.tied_copy:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    if family.stray:
        safetensors.torch.save_file({"model.norm.weight": torch.zeros(3)},
                                    folder / "consolidated.safetensors", {"format": "pt"})
    if family.shards == 1:
        safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return
    keys, index = list(tensors), {}
    for i in range(family.shards):
        file = f"model-{i + 1:05}-of-{family.shards:05}.safetensors"
        part = keys[i::family.shards]  # neighbours lie in different files
        safetensors.torch.save_file({key: tensors[key] for key in part}, folder / file,
                                    {"format": "pt"})
        index |= {key: file for key in part}
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))},
        indent=2) + "\n")


def load(folder: pathlib.Path, dtype: torch.dtype, config: dict | None = None):
    """The folder as transformers loads it, with its plain attention and experts.

    With `config`, that takes the place of the folder's config.json.
    """
    if config:
        with tempfile.TemporaryDirectory() as work:
            for file in folder.glob("model*"):
                (pathlib.Path(work) / file.name).symlink_to(file.resolve())
            (pathlib.Path(work) / "config.json").write_text(json.dumps(config))
            return load(pathlib.Path(work), dtype)
    keys = dict(attn_implementation="eager", dtype=dtype)
    if "num_experts_per_tok" in json.loads((folder / "config.json").read_text()):
        keys["experts_implementation"] = "eager"
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, **keys)
    wrong = {k: v for k, v in info.items() if v}
    assert not wrong, f"{folder}: {wrong}"
    return model.eval()


def in_float64(model):
    """A float64 copy of a float32 model; its rotary frequencies are computed in float64 too."""
    with float64_everywhere():
        copy = type(model)(model.config).double().eval()
        copy.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
    return copy


class Routers:
    """Records the router logits of every forward pass."""

    def __init__(self, model):
        self.logits = []
        self.chosen = model.config.to_dict().get("num_experts_per_tok")
        for module in model.modules():
            if type(module).__name__.endswith("TopKRouter"):
                module.register_forward_hook(lambda _m, _i, out: self.logits.append(out[0]))

    def margins(self, sequences: int) -> np.ndarray | None:
        """Per sequence the smallest margin since the last call; None without routers."""
        if not self.logits:
            return None
        rows = torch.stack(self.logits)  # [layers, sequences * tokens, experts]
        self.logits.clear()
        best = rows.sort(-1, descending=True).values
        margin = best[..., self.chosen - 1] - best[..., self.chosen]
        return margin.reshape(rows.shape[0], sequences, -1).amin((0, 2)).numpy()


def run(model, ids) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor(np.atleast_2d(ids)), use_cache=False).logits


def make_prompt(exact, routers: Routers, name: str, kind: str, tokens: int) -> list[int]:
    """Random ids; with routers, each id is chosen so that all of its routers' margins are clear."""
    draw = generator(name, "prompt", kind)
    vocabulary = exact.config.vocab_size
    ids = draw.integers(3, vocabulary, tokens).tolist()
    if not any(type(m).__name__.endswith("TopKRouter") for m in exact.modules()):
        return ids
    for t in range(tokens):
        tries = draw.choice(vocabulary - 3, 48, replace=False) + 3
        with float64_everywhere():
            run(exact, [ids[:t] + [int(x)] for x in tries])
        margins = routers.margins(len(tries))
        clear = np.flatnonzero(margins > ROUTER_MARGIN)
        assert clear.size, f"{name}: no id with clear routers at position {t}"
        ids[t] = int(tries[clear[0]])
    return ids


def greedy(exact, ids: list[int], limit: int) -> dict:
    """Up to 24 ids that follow, end tokens or not, each from a run over the whole sequence.

    It stops before a choice that is nearly a tie, and at `limit` ids in all.
    """
    out, margins = [], []
    while len(out) < 24 and len(ids) + len(out) < limit:
        with float64_everywhere():
            best = run(exact, ids + out)[0, -1].topk(2)
        margin = float(best.values[0] - best.values[1])
        if margin < GREEDY_MARGIN:
            break
        margins.append(margin)
        out.append(int(best.indices[0]))
    return {"greedy": out, "greedy_margin_min": min(margins)}


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """L2 norm of the difference over the L2 norm of the reference."""
    return float((got.double() - want).norm() / want.norm())


def describe(want: torch.Tensor, ids: list[int]) -> dict:
    best = want.sort(-1, descending=True).values
    margins = (best[:, 0] - best[:, 1]).numpy()
    logp = want.log_softmax(-1)
    entropy = -(logp.exp() * logp).sum(-1).mean()
    return {
        "logits_std": round(float(want.std()), 4),
        "entropy_nats": round(float(entropy), 4),
        "uniform_entropy_nats": round(float(np.log(want.shape[-1])), 4),
        "argmax_margin_min": float(margins.min()),
        "argmax_margin_median": float(np.median(margins)),
        "argmax": want.argmax(-1).tolist(),
        "argmax_is_input": round(float((want.argmax(-1) == torch.tensor(ids)).double().mean()), 3),
    }


def versions() -> dict:
    return {"python": platform.python_version(), "torch": torch.__version__,
            "transformers": transformers.__version__, "safetensors": safetensors.__version__,
            "numpy": np.__version__, "gguf": importlib.metadata.version("gguf")}


def make(out: pathlib.Path, name: str, family: Family) -> None:
    folder = out / name
    write_folder(folder, name, family)
    single, half = load(folder, torch.float32), load(folder, torch.bfloat16)
    exact = in_float64(single)
    routers = Routers(exact)
    prompts = []
    for kind, tokens in (("short", family.short_tokens), ("long", family.long_tokens)):
        ids = make_prompt(exact, routers, name, kind, tokens)
        with float64_everywhere():
            want = run(exact, ids)[0]
        assert want.dtype == torch.float64
        margin = routers.margins(1)
        np.save(folder / f"{kind}.npy", want.float().numpy())
        prompts.append({
            "name": kind, "tokens": ids, "logits": f"{kind}.npy",
            "transformers_f32_error": error(run(single, ids)[0], want),
            "transformers_bf16_error": error(run(half, ids)[0], want),
            "router_margin_min": None if margin is None else float(margin[0]),
            **describe(want, ids)})
        if kind == "short":  # with LongRoPE only as far as the short factors hold
            scaled = "longrope" in json.dumps(family.config)
            limit = family.config["original_max_position_embeddings"] if scaled else 512
            prompts[-1] |= greedy(exact, ids, limit)
            routers.logits.clear()
            print(name, "greedy", len(prompts[-1]["greedy"]), prompts[-1]["greedy_margin_min"])
        print(f"{name:14} {kind:5} f32 {prompts[-1]['transformers_f32_error']:.1e} bf16 "
              f"{prompts[-1]['transformers_bf16_error']:.1e} std {prompts[-1]['logits_std']:.2f} "
              f"entropy {prompts[-1]['entropy_nats']:.2f}/{np.log(want.shape[-1]):.2f} margin "
              f"{prompts[-1]['argmax_margin_min']:.4f} router {prompts[-1]['router_margin_min']} "
              f"echo {prompts[-1]['argmax_is_input']}")
    golden = {"generator": "tools/make_goldens.py", "versions": versions(), "seed": SEED,
              "model": name, "family": family.config["model_type"],
              "parameters": sum(p.numel() for p in single.parameters()), "prompts": prompts}
    golden["mistakes"] = {
        what: error(run(load(folder, torch.float32, family.config | keys), ids)[0], want)
        for what, keys in family.mistakes.items()}
    print("   ", {k: f"{v:.3f}" for k, v in golden["mistakes"].items()})
    if family.gguf:
        golden["gguf"] = f"../gguf/{name}.gguf"
        golden_gguf.write_twin(folder, out / "gguf" / f"{name}.gguf", family.gguf)
    text = re.sub(r"\[[\s\d,]+\]", lambda m: " ".join(m[0].split()).replace("[ ", "[").replace(
        " ]", "]"), json.dumps(golden, indent=1))  # ids on one line
    (folder / "golden.json").write_text(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FAMILIES))
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/golden/models")
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in arguments.names or FAMILIES:
        make(arguments.out, name, FAMILIES[name])


if __name__ == "__main__":
    main()
