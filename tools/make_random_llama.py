#!/usr/bin/env python3
"""Makes a random Llama-shaped model for benchmarks: as GGUF files and as a Hugging Face folder.

    python3 tools/make_random_llama.py --out ~/.cache/penstock/models/random-1.1b
    python3 tools/make_random_llama.py --out small --layers 4 --width 256 --ffn 1024 --heads 8 \\
        --kv-heads 2 --vocabulary 1000 --formats Q8_0,hf

Needs gguf and numpy from PyPI. The defaults are the 1.1B shape of docs/performance.md: 16 layers,
2048 wide, FFN 8192, 32 heads, 8 KV heads, vocabulary 32000. Writes OUT/hf (config.json and
model.safetensors in bf16) and OUT/TYPE.gguf for each type in --formats; all hold the same weights
(values that bf16 and float16 both represent; they depend on the shapes and the seed alone), as far
as the type allows. Tensors are made and written piece by piece, in under 300 MB of memory. There is
no tokenizer: use --tokens.
"""

import argparse
import hashlib
import json
import pathlib
import struct
import time

import gguf
import numpy as np

from golden_gguf import permute

CHUNK = 1 << 20  # values drawn at a time


def shapes(a: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """Hugging Face names and shapes, in the order in which they are written."""
    head = a.width // a.heads
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (a.vocabulary, a.width)}
    for i in range(a.layers):
        layer = f"model.layers.{i}."
        out |= {
            layer + "input_layernorm.weight": (a.width,),
            layer + "self_attn.q_proj.weight": (a.heads * head, a.width),
            layer + "self_attn.k_proj.weight": (a.kv_heads * head, a.width),
            layer + "self_attn.v_proj.weight": (a.kv_heads * head, a.width),
            layer + "self_attn.o_proj.weight": (a.width, a.heads * head),
            layer + "post_attention_layernorm.weight": (a.width,),
            layer + "mlp.gate_proj.weight": (a.ffn, a.width),
            layer + "mlp.up_proj.weight": (a.ffn, a.width),
            layer + "mlp.down_proj.weight": (a.width, a.ffn),
        }
    return out | {"model.norm.weight": (a.width,), "lm_head.weight": (a.vocabulary, a.width)}


def chunks(seed: int, name: str, shape: tuple[int, ...]):
    """The tensor's float32 values, a block of rows at a time."""
    if len(shape) == 1:
        yield on_grid(1 + 0.1 * generator(seed, name, 0).standard_normal(shape, np.float32))
        return
    gain = 1.0 if "embed" in name else 2.4 if "lm_head" in name else 1.2
    scale = np.float32(gain if "embed" in name else gain / shape[1] ** 0.5)
    rows = shape[0] if "_proj" in name and "self_attn" in name else max(1, CHUNK // shape[1])
    for row in range(0, shape[0], rows):
        block = (min(rows, shape[0] - row), shape[1])
        yield on_grid(generator(seed, name, row).standard_normal(block, np.float32) * scale)


def generator(seed: int, name: str, row: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}/{name}/{row}".encode()).digest()
    return np.random.Generator(np.random.SFC64(int.from_bytes(digest[:16], "little")))


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """Rounds to nearest even; the values are finite."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def on_grid(values: np.ndarray) -> np.ndarray:
    """Rounds to values that bf16 and float16 both hold."""
    short = (bf16_bits(values).astype(np.uint32) << 16).view(np.float32)
    return short.astype(np.float16).astype(np.float32)


class Folder:
    """A Hugging Face folder, written tensor by tensor."""

    def __init__(self, path: pathlib.Path, a: argparse.Namespace):
        path.mkdir(parents=True, exist_ok=True)
        config = {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "vocab_size": a.vocabulary, "hidden_size": a.width, "intermediate_size": a.ffn,
            "num_hidden_layers": a.layers, "num_attention_heads": a.heads,
            "num_key_value_heads": a.kv_heads, "hidden_act": "silu",
            "max_position_embeddings": a.context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "rope_scaling": None, "tie_word_embeddings": False, "attention_bias": False,
            "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
            "transformers_version": "4.46.0"}
        (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for name, shape in shapes(a).items():
            size = 2 * int(np.prod(shape))
            header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.file = open(path / "model.safetensors", "wb")
        self.file.write(struct.pack("<Q", len(text)) + text)

    def add(self, values: np.ndarray, _name: str) -> None:
        self.file.write(bf16_bits(values).tobytes())

    def end_tensor(self) -> None:
        pass

    def close(self) -> None:
        self.file.close()


class Gguf:
    """A GGUF file, written tensor by tensor; matrices in one type, norms in float32."""

    def __init__(self, path: pathlib.Path, kind: str, a: argparse.Namespace):
        self.kind = gguf.GGMLQuantizationType[kind]
        self.heads = {"q_proj": a.heads, "k_proj": a.kv_heads}
        self.writer = writer = gguf.GGUFWriter(path, "llama")
        writer.add_name(f"random-llama-{a.layers}x{a.width}")
        writer.add_block_count(a.layers)
        writer.add_context_length(a.context)
        writer.add_embedding_length(a.width)
        writer.add_feed_forward_length(a.ffn)
        writer.add_head_count(a.heads)
        writer.add_head_count_kv(a.kv_heads)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(10000.0)
        writer.add_rope_dimension_count(a.width // a.heads)
        writer.add_vocab_size(a.vocabulary)
        writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind}"] if kind != "F32"
                             else gguf.LlamaFileType.ALL_F32)
        writer.add_tokenizer_model("no_vocab")
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, a.layers)
        for name, shape in shapes(a).items():
            kind_here = self.kind if len(shape) > 1 else gguf.GGMLQuantizationType.F32
            block, size = gguf.GGML_QUANT_SIZES[kind_here]
            if shape[-1] % block:
                raise SystemExit(f"{name}: rows of {shape[-1]} values are no multiple of {kind}'s "
                                 f"block of {block}")
            count = int(np.prod(shape))
            stored = (shape if kind_here in (0, 1) else
                      gguf.quant_shape_to_byte_shape(shape, kind_here))
            dtype = {0: np.float32, 1: np.float16}.get(int(kind_here), np.uint8)
            writer.add_tensor_info(names.get_name(name, try_suffixes=(".weight",)), stored,
                                   np.dtype(dtype), count // block * size, kind_here)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        self.file = writer.fout[0]
        self.written = 0
        writer.write_padding(self.file, self.file.tell())

    def add(self, values: np.ndarray, name: str) -> None:
        part = name.split(".")[-2]
        if part in self.heads:
            values = permute(values, self.heads[part])
        if values.ndim > 1 and int(self.kind) > 1:
            values = gguf.quants.quantize(values, self.kind)
        elif values.ndim > 1 and int(self.kind) == 1:
            values = values.astype(np.float16)
        data = np.ascontiguousarray(values).tobytes()
        self.file.write(data)
        self.written += len(data)

    def end_tensor(self) -> None:
        self.writer.write_padding(self.file, self.written)
        self.written = 0

    def close(self) -> None:
        self.writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--formats", default="Q8_0,F16,hf",
                        help="of hf, F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 (default: "
                             "%(default)s)")
    for flag, default in (("layers", 16), ("width", 2048), ("ffn", 8192), ("heads", 32),
                          ("kv-heads", 8), ("vocabulary", 32000), ("context", 4096), ("seed", 0)):
        parser.add_argument("--" + flag, type=int, default=default)
    a = parser.parse_args()
    if a.width % a.heads or a.heads % a.kv_heads or a.width // a.heads % 2:
        parser.error("width must be a multiple of heads (with an even quotient), heads of kv-heads")
    a.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    writers = [Folder(a.out / "hf", a) if kind == "hf" else Gguf(a.out / f"{kind}.gguf", kind, a)
               for kind in a.formats.split(",")]
    for name, shape in shapes(a).items():
        for values in chunks(a.seed, name, shape):
            for writer in writers:
                writer.add(values, name)
        for writer in writers:
            writer.end_tensor()
    for writer in writers:
        writer.close()
    total = sum(int(np.prod(s)) for s in shapes(a).values())
    print(f"{a.out}: {total:,} parameters, {a.formats}, {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
