#!/usr/bin/env python3
"""Draws what the depth reads of a trained Kimi K3 have learned: the weight of each source in each
read, averaged over the tokens of a text.

    penstock export runs/tiny-k3 -o runs/tiny-k3-model
    python3 tools/plot_depth_weights.py runs/tiny-k3-model TEXT -o depth.svg [--json depth.json]

Runs tools/kimi_reference.py in float64 (torch, safetensors and numpy from PyPI) over the first
--tokens bytes of TEXT as ids, so the model must be one over bytes (configs/train/tiny-k3).
"""

import argparse
import json
import pathlib
import sys

import safetensors.torch
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import kimi_reference  # noqa: E402

CELL_W, CELL_H, LEFT, TOP = 64, 18, 150, 54


def weights(folder, ids):
    config = json.loads((folder / "config.json").read_text())
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= safetensors.torch.load_file(file)
    model = kimi_reference.Model(config.get("text_config", config),
                                 {k: v.double() for k, v in tensors.items()})
    with torch.no_grad():
        model.logits(torch.tensor(ids))
    return {name: w.mean(-1).tolist() for name, w in model.reads.items()}


def label(name):
    parts = name.split(".")
    if "layers" not in parts:
        return "output"
    kind = "attention" if parts[-1].startswith("self_attention") else "experts"
    return f"layer {parts[parts.index('layers') + 1]}, {kind}"


def picture(reads):
    most = max(len(w) for w in reads.values())
    width, height = LEFT + CELL_W * most + 20, TOP + CELL_H * len(reads) + 30
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           f'viewBox="0 0 {width} {height}">',
           "<style>svg{background:#fff;color:#222}text{font:12px sans-serif;fill:currentColor}"
           ".v{font:11px sans-serif}@media(prefers-color-scheme:dark){svg{background:#161616;"
           "color:#ddd}}</style>",
           f'<text x="8" y="18">Mean weight of each source; the last one of a row is the '
           "running sum</text>"]
    for j in range(most):
        name = "embedding" if j == 0 else f"block {j - 1}" if j < most - 1 else "sum"
        out.append(f'<text x="{LEFT + CELL_W * j + CELL_W / 2}" y="{TOP - 8}" '
                   f'text-anchor="middle">{name}</text>')
    for i, (name, row) in enumerate(reads.items()):
        y = TOP + CELL_H * i
        out.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{label(name)}</text>')
        places = [*range(len(row) - 1), most - 1]
        for j, value in zip(places, row):
            fill = ' style="fill:#fff"' if value > 0.55 else ""
            out.append(f'<rect x="{LEFT + CELL_W * j}" y="{y}" width="{CELL_W - 2}" '
                       f'height="{CELL_H - 2}" fill="#0072b2" fill-opacity="{value:.3f}" '
                       'stroke="#0072b2" stroke-opacity="0.3"/>')
            out.append(f'<text class="v" x="{LEFT + CELL_W * j + CELL_W / 2 - 1}" y="{y + 12}" '
                       f'text-anchor="middle"{fill}>'
                       f"{value:.2f}</text>")
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=256)
    a = parser.parse_args()
    torch.set_num_threads(1)
    reads = weights(a.folder, list(a.text.read_bytes()[:a.tokens]))
    if not reads:
        parser.error(f"{a.folder}: the model has no depth reads")
    a.output.write_text(picture(reads))
    if a.json:
        a.json.write_text(json.dumps(reads, indent=1) + "\n")


if __name__ == "__main__":
    main()
