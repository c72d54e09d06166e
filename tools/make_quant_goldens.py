#!/usr/bin/env python3
"""Makes tests/golden/models/quant: one small GGUF per quantization type, with its float32 values.

    python3 tools/make_quant_goldens.py [--out tests/golden/models/quant]

Needs gguf and numpy from PyPI; no part of any test run. Each `TYPE.gguf` holds two tensors of that
type: `real.weight` (values quantized by gguf-py where it can; for K-quants blocks whose scales are
of real size) and `random.weight` (blocks of random bits, scales finite), so that every bit field
takes every value. `TYPE.real.npy` and `TYPE.random.npy` are gguf-py's dequantized float32 values
(3 rows of 512).
"""

import argparse
import hashlib
import importlib.metadata
import json
import pathlib

import gguf
import numpy as np

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K",
         "Q5_K", "Q6_K"]
# Byte offsets of the float16 scales in one block.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
ROWS, COLUMNS = 3, 512
SEED = 20261130


def random_blocks(draw: np.random.Generator, name: str, subnormal: bool) -> np.ndarray:
    """Rows of blocks with random bits and finite scales (some negative; with `subnormal` tiny)."""
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = draw.integers(0, 256, (ROWS * COLUMNS // block, size), dtype=np.uint8)
    for i, offset in enumerate(SCALES[name]):
        scale = draw.uniform(0.002, 0.02, len(blocks)) * (1 if i else draw.choice([-1, 1],
                                                                                 len(blocks)))
        if subnormal:
            scale[::5] = 3e-6
            scale[1::5] = 0
        blocks[:, offset:offset + 2] = scale.astype(np.float16)[:, None].view(np.uint8)
    return blocks.reshape(ROWS, -1)


def tensor(draw: np.random.Generator, name: str, random: bool) -> np.ndarray:
    """Bytes of one tensor [ROWS, COLUMNS]."""
    kind = gguf.GGMLQuantizationType[name]
    values = draw.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    if name in SCALES and (random or name.endswith("_K")):
        return random_blocks(draw, name, random)
    if random:
        values *= np.exp(draw.uniform(-12, 6, values.shape)).astype(np.float32)
    return gguf.quants.quantize(values, kind)


def main() -> None:
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/golden/models/quant")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    golden = {"generator": "tools/make_quant_goldens.py", "seed": SEED,
              "versions": {p: importlib.metadata.version(p) for p in ("gguf", "numpy")},
              "shape": [ROWS, COLUMNS], "types": []}
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        digest = hashlib.sha256(f"{SEED}/{name}".encode()).digest()
        draw = np.random.Generator(np.random.Philox(int.from_bytes(digest[:8], "little")))
        writer = gguf.GGUFWriter(out / f"{name}.gguf", "llama")
        writer.add_name(f"{name} blocks")
        for which in ("real", "random"):
            data = tensor(draw, name, which == "random")
            values = gguf.quants.dequantize(data, kind).reshape(ROWS, COLUMNS)
            assert np.isfinite(values).all() and values.dtype == np.float32
            raw = data if name == "F32" else np.ascontiguousarray(data).view(np.uint8).reshape(
                ROWS, -1)
            if name in ("F32", "F16"):
                writer.add_tensor(f"{which}.weight", data)
            else:
                writer.add_tensor(f"{which}.weight", raw, raw_dtype=kind)
            np.save(out / f"{name}.{which}.npy", values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        again = gguf.GGUFReader(out / f"{name}.gguf")
        for t in again.tensors:
            assert t.tensor_type == kind and list(t.shape) == [COLUMNS, ROWS], (name, t)
            which = t.name.split(".")[0]
            got = gguf.quants.dequantize(t.data, t.tensor_type).reshape(ROWS, COLUMNS)
            assert np.array_equal(got, np.load(out / f"{name}.{which}.npy")), t.name
        golden["types"].append({"type": name, "file": f"{name}.gguf", "tensors": {
            f"{w}.weight": f"{name}.{w}.npy" for w in ("real", "random")}})
    (out / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
