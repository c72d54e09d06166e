#!/usr/bin/env python3
"""The softmax over depth that a model with attention residuals has learned, as a picture.

    tools/plot_depth.py FOLDER TEXT -o FILE.svg [--logits FILE.npy] [--json FILE.json] [--tokens N]

FOLDER is a model in Hugging Face layout (from `penstock export`) of a byte tokenizer (tools/make_byte_tokenizer.py): a Llama with
`attention_residuals`, or a Kimi K3. Each row of the picture is a read: attention and MLP (experts) of each layer, and the read in
front of the head; each column a source: the embedding, the finished blocks, the running sum. A cell is the mean weight over the
first N bytes of TEXT (256). With --logits the logits are compared with those of `penstock logits`, so that the picture is of the
model that the engine runs; --json writes the weights. Needs numpy, for a K3 also torch and safetensors (tools/kimi_reference.py).

Formulas: arXiv 2603.15031, section 3. Written for reading, in float64."""
import argparse
import json
import pathlib
import struct
import sys

import numpy as np

from plot_training import Picture


def tensors(folder):
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8:8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + o for o in entry["data_offsets"])
            if entry["dtype"] == "BF16":
                raw = np.frombuffer(data[begin:end], np.uint16).astype(np.uint32) << 16
                numbers = raw.view(np.float32)
            else:
                numbers = np.frombuffer(data[begin:end], {"F32": np.float32, "F16": np.float16}[entry["dtype"]])
            found[name] = numbers.reshape(entry["shape"]).astype(np.float64)
    return found


def norm(x, weight, eps):
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return y if weight is None else y * weight


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


class Llama:
    def __init__(self, folder):
        self.config = json.loads((pathlib.Path(folder) / "config.json").read_text())
        self.w = tensors(folder)
        self.eps = self.config["rms_norm_eps"]
        residuals = self.config["attention_residuals"]
        sublayers = 2 * self.config["num_hidden_layers"]
        size = 1 if residuals["residual"] == "full" else residuals["block_size"]
        sizes = size if isinstance(size, list) else [size] * -(-sublayers // size)
        ends = np.cumsum(sizes)
        self.ends = {min(int(e), sublayers) for e in ends}
        self.reads = []  # (name, mean weights by source, sources that are no running sum)

    def read(self, bank, running, tensor, name):
        sources = bank + ([running] if running is not None else [])
        stack = np.stack(sources)  # [sources, rows, width]
        keys = norm(stack, self.w.get(tensor + "_norm.weight"), self.eps)
        weights = softmax(keys @ self.w[tensor + "_proj.weight"][0], 0)
        self.reads.append((name, weights.mean(1), len(bank)))
        return (weights[..., None] * stack).sum(0)

    def attention(self, x, prefix):
        c = self.config
        heads, groups = c["num_attention_heads"], c["num_key_value_heads"]
        dim = c.get("head_dim") or c["hidden_size"] // heads
        rows = len(x)
        q, k, v = (x @ self.w[f"{prefix}.{n}_proj.weight"].T for n in "qkv")
        angle = np.arange(rows)[:, None] / c["rope_theta"] ** (np.arange(dim // 2) * 2 / dim)
        cos, sin = np.cos(angle), np.sin(angle)

        def rotate(y, n):
            a, b = np.split(y.reshape(rows, n, dim), 2, -1)
            return np.concatenate([a * cos[:, None] - b * sin[:, None], b * cos[:, None] + a * sin[:, None]], -1)

        q, k = rotate(q, heads), np.repeat(rotate(k, groups), heads // groups, 1)
        v = np.repeat(v.reshape(rows, groups, dim), heads // groups, 1)
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(dim)
        scores[:, np.triu_indices(rows, 1)[0], np.triu_indices(rows, 1)[1]] = -np.inf
        out = np.einsum("hij,jhd->ihd", softmax(scores, -1), v)
        return out.reshape(rows, heads * dim) @ self.w[f"{prefix}.o_proj.weight"].T

    def mlp(self, x, prefix):
        gate = x @ self.w[f"{prefix}.gate_proj.weight"].T
        return (gate / (1 + np.exp(-gate)) * (x @ self.w[f"{prefix}.up_proj.weight"].T)) @ self.w[f"{prefix}.down_proj.weight"].T

    def forward(self, tokens):
        bank, running, done = [self.w["model.embed_tokens.weight"][tokens]], None, 0
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}"
            for tensor, kind, weight, run in (
                    ("self_attention_res", "attention", "input_layernorm", lambda x: self.attention(x, prefix + ".self_attn")),
                    ("mlp_res", "MLP", "post_attention_layernorm", lambda x: self.mlp(x, prefix + ".mlp"))):
                x = self.read(bank, running, f"{prefix}.{tensor}", f"layer {layer}, {kind}")
                y = run(norm(x, self.w[f"{prefix}.{weight}.weight"], self.eps))
                running = y if running is None else running + y
                done += 1
                if done in self.ends:
                    bank, running = bank + [running], None
        if self.config["attention_residuals"].get("output", "attend") == "attend":
            x = self.read(bank, running, "model.output_attn_res", "output")
        else:
            x = sum(bank) + (running if running is not None else 0)
        head = self.w.get("lm_head.weight", self.w["model.embed_tokens.weight"])
        return norm(x, self.w["model.norm.weight"], self.eps) @ head.T


def llama_reads(folder, ids):
    model = Llama(folder)
    logits = model.forward(ids)
    return [(name, list(weights), finished) for name, weights, finished in model.reads], logits


def kimi_reads(folder, config, ids):
    import safetensors.torch
    import torch

    import kimi_reference
    torch.set_num_threads(1)
    weights = {}
    for path in sorted(folder.glob("*.safetensors")):
        weights |= safetensors.torch.load_file(path)
    model = kimi_reference.Model(config, {name: w.double() for name, w in weights.items()})
    with torch.no_grad():
        logits = model.logits(torch.tensor(ids)).numpy()

    def label(tensor):
        parts = tensor.split(".")
        if "layers" not in parts:
            return "output"
        return f"layer {parts[parts.index('layers') + 1]}, {'attention' if parts[-1].startswith('self') else 'experts'}"

    # The last source of a read is the running sum.
    return [(label(name), w.mean(-1).tolist(), len(w) - 1) for name, w in model.reads.items()], logits


def reads_of(folder, ids):
    """[(name, mean weights by source, sources that are no running sum)], logits."""
    config = json.loads((folder / "config.json").read_text())
    config = config.get("text_config", config)
    if config.get("model_type") == "kimi_linear":
        return kimi_reads(folder, config, ids)
    if "attention_residuals" not in config:
        sys.exit(f"{folder}: the model has no depth reads")
    if config.get("model_type") != "llama":
        sys.exit(f"{folder}: a {config.get('model_type')}, wanted a llama or a Kimi K3")
    return llama_reads(folder, ids)


def colour(weight):
    """White to blue."""
    low, high = (255, 255, 255), (0, 81, 140)
    return "#" + "".join(f"{round(a + (b - a) * weight ** 0.7):02x}" for a, b in zip(low, high))


def draw(reads, path):
    left, top, cell, high = 130, 62, 62, 22
    columns = ["embedding"] + [f"block {i + 1}" for i in range(max(finished for _, _, finished in reads) - 1)]
    picture = Picture(left + cell * (len(columns) + 1) + 20, top + high * len(reads) + 26)
    picture.text(10, 20, "Mean weight of each source", cls="t")
    for c, name in enumerate(columns + ["running"]):
        picture.text(left + cell * (c + 0.5), top - 8, name, "middle")
    for r, (name, weights, finished) in enumerate(reads):
        y = top + high * r
        picture.text(left - 8, y + 15, name, "end")
        for i, weight in enumerate(weights):
            c = i if i < finished else len(columns)
            x = left + cell * c
            picture.add(f'<rect x="{x}" y="{y}" width="{cell - 2}" height="{high - 2}" fill="{colour(weight)}"/>')
            ink = "#fff" if weight > 0.45 else "#222"
            picture.add(f'<text x="{x + cell / 2 - 1}" y="{y + 15}" text-anchor="middle" style="fill:{ink}">{weight:.2f}</text>')
    picture.write(path)


def main():
    parser = argparse.ArgumentParser(usage=__doc__, add_help=True)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--logits", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=256)
    a = parser.parse_args()
    reads, logits = reads_of(a.folder, list(a.text.read_bytes()[:a.tokens]))
    if not reads:
        sys.exit(f"{a.folder}: the model has no depth reads")
    if a.logits:
        wanted = np.load(a.logits)
        error = np.linalg.norm(logits - wanted) / np.linalg.norm(wanted)
        print(f"relative error against the engine's logits: {error:.2e}")
        if error > 1e-4:
            sys.exit("the picture would be of another model")
    draw(reads, a.output)
    if a.json:
        a.json.write_text(json.dumps({name: [float(w) for w in weights] for name, weights, _ in reads}, indent=1) + "\n")


if __name__ == "__main__":
    main()
