#!/usr/bin/env python3
"""Writes the committed starting points of the fuzz targets (Python's standard library only)."""

import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent / "corpus"
UINT8, UINT32, FLOAT, BOOL, STRING, ARRAY, UINT64 = 0, 4, 6, 7, 8, 9, 10


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value_of(value):
    """Type number and bytes of a metadata value."""
    if isinstance(value, bool):
        return BOOL, struct.pack("<B", value)
    if isinstance(value, int):
        return UINT32, struct.pack("<I", value)
    if isinstance(value, float):
        return FLOAT, struct.pack("<f", value)
    if isinstance(value, str):
        return STRING, text(value)
    parts = [value_of(item) for item in value]
    kind = parts[0][0] if parts else UINT8
    return ARRAY, struct.pack("<IQ", kind, len(parts)) + b"".join(part[1] for part in parts)


def gguf(metadata, tensors, version=3, alignment=32):
    """`tensors`: name -> (dimensions with columns first, type number, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, data = value_of(value)
        head += text(key) + struct.pack("<I", kind) + data
    data = b""
    for name, (shape, kind, values) in tensors.items():
        head += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape)
        head += struct.pack("<IQ", kind, len(data))
        data += values + b"\0" * (-len(values) % alignment)
    return head + b"\0" * (-len(head) % alignment) + data


def floats(*shape):
    count = 1
    for n in shape:
        count *= n
    return shape, 0, struct.pack(f"<{count}f", *(0.25 + 0.25 * (i % 7) for i in range(count)))


def quantized(kind, block, size, *shape):
    count = 1
    for n in shape:
        count *= n
    return shape, kind, bytes(range(size)) * (count // block)


def layer(names_and_shapes):
    return {f"blk.0.{name}.weight": floats(*shape) for name, shape in names_and_shapes.items()}


def model(architecture, extra=(), keys=(), width=8, inner=4):
    """Metadata and tensors of one layer: two heads of four, one key head."""
    prefix = architecture + "."
    metadata = {"general.architecture": architecture, prefix + "block_count": 1, prefix + "context_length": 64,
                prefix + "embedding_length": width, prefix + "feed_forward_length": inner, prefix + "attention.head_count": 2,
                prefix + "attention.head_count_kv": 1, prefix + "attention.layer_norm_rms_epsilon": 1e-5,
                prefix + "rope.freq_base": 10000.0}
    metadata.update({prefix + key: value for key, value in dict(keys).items()})
    tensors = {"token_embd.weight": floats(width, 5), "output_norm.weight": floats(width)}
    tensors.update(layer({"attn_norm": (width,), "ffn_norm": (width,), "attn_q": (width, 8), "attn_k": (width, 4),
                          "attn_v": (width, 4), "attn_output": (8, width)}))
    tensors.update(layer(dict(extra)))
    return metadata, tensors


DENSE = {"ffn_gate": (8, 4), "ffn_up": (8, 4), "ffn_down": (4, 8)}
EXPERTS = {"ffn_gate_inp": (8, 2), "ffn_gate_exps": (8, 4, 2), "ffn_up_exps": (8, 4, 2), "ffn_down_exps": (4, 8, 2)}
SANDWICH = {"post_attention_norm": (8,), "post_ffw_norm": (8,)}


def gguf_corpus():
    llama, tensors = model("llama", DENSE)
    yield "llama", gguf(llama, tensors)
    yield "llama-v2", gguf(llama, {**tensors, "output.weight": floats(8, 5)}, version=2)
    yield "llama-rope", gguf({**llama, "llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
                             {**tensors, "rope_freqs.weight": floats(2)})
    yield "llama-yarn", gguf({**llama, "llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0,
                              "llama.rope.scaling.original_context_length": 16}, tensors)
    yield "mixtral", gguf(*model("llama", EXPERTS, {"expert_count": 2, "expert_used_count": 1}))
    yield "qwen2", gguf(*model("qwen2", DENSE))
    yield "qwen3", gguf(*model("qwen3", {**DENSE, "attn_q_norm": (4,), "attn_k_norm": (4,)}, {"attention.key_length": 4}))
    yield "qwen3moe", gguf(*model("qwen3moe", {**EXPERTS, "attn_q_norm": (4,), "attn_k_norm": (4,)}, {
        "expert_count": 2, "expert_used_count": 1, "expert_feed_forward_length": 4}))
    phi, tensors = model("phi3", {"ffn_up": (8, 8), "ffn_down": (4, 8), "attn_qkv": (8, 16)},
                         {"rope.scaling.original_context_length": 16, "attention.sliding_window": 7})
    yield "phi3", gguf(phi, {**tensors, "rope_factors_short.weight": floats(2), "rope_factors_long.weight": floats(2)})
    yield "gemma2", gguf(*model("gemma2", {**DENSE, **SANDWICH}, {
        "attention.sliding_window": 5, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}))
    yield "gemma3", gguf(*model("gemma3", {**DENSE, **SANDWICH, "attn_q_norm": (4,), "attn_k_norm": (4,)}, {
        "attention.sliding_window": 5, "attention.sliding_window_pattern": [True], "rope.freq_base_swa": 10000.0}))
    wide, _ = model("llama", width=256, inner=256)
    yield "types", gguf({**wide, "general.alignment": 64}, {
        "token_embd.weight": quantized(8, 32, 34, 256, 1), "blk.0.attn_q.weight": quantized(3, 32, 20, 256, 1),
        "blk.0.attn_k.weight": quantized(10, 256, 84, 256, 1), "blk.0.attn_v.weight": quantized(11, 256, 110, 256, 1),
        "blk.0.ffn_up.weight": quantized(14, 256, 210, 256, 1)}, alignment=64)
    yield "vocabulary", gguf({
        "general.architecture": "llama", "tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "a"], "tokenizer.ggml.scores": [0.0, 0.0, -1.0],
        "tokenizer.ggml.token_type": [2, 3, 1], "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.add_bos_token": True, "tokenizer.chat_template": "{{ x }}", "general.sampling.temp": 0.7,
        "nested": [[1, 2], [3]]}, {})
    yield "split", gguf({**llama, "split.no": 0, "split.count": 2, "split.tensors.count": 3}, {})


def safetensors(header, data=b"", pad=0):
    head = json.dumps(header, separators=(",", ":")).encode() + b" " * pad
    return struct.pack("<Q", len(head)) + head + data


def safetensors_corpus():
    def entry(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    yield "empty", safetensors({})
    yield "one", safetensors({"a": entry("F32", [2], 0, 8)}, b"12345678", 5)
    yield "several", safetensors({"__metadata__": {"format": "pt"}, "b": entry("BF16", [1, 2], 4, 8), "a": entry("F16", [2], 0, 4),
                                  "none": entry("I64", [0, 3], 8, 8), "scalar": entry("U8", [], 8, 9)}, b"123456789")
    yield "types", safetensors({name: entry(name, [1], i, i + 1) for i, name in enumerate(
        ["BOOL", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"])}, b"12345")
    yield "packed", safetensors({"a": entry("F4", [3, 2], 0, 3), "b": entry("F6_E2M3", [4], 3, 6)}, b"123456")


def message_header(kind, dtype, source, target, edge, micro_batch, step, rows, columns):
    return b"h" + struct.pack("<4sHBBiiiiqqqq8x", b"PSTK", 1, kind, dtype, source, target, edge, micro_batch, step, rows, columns, 7)


def counted(kind, values):
    return struct.pack(f"<I{len(values)}{kind}", len(values), *values)


def step_plan(kind, step, slices, note=b""):
    """`slices`: (sequence, long rope, select, first position, tokens, block tables)."""
    out = struct.pack("<BqiI", kind, step, step % 2, len(slices))
    for sequence, rope, select, position, tokens, tables in slices:
        out += struct.pack("<iBBq", sequence, rope, select, position) + counted("i", tokens)
        out += struct.pack("<I", len(tables)) + b"".join(counted("i", table) for table in tables)
    return b"p" + out + counted("B", note)


def message_corpus():
    yield "header-forward", message_header(0, 0, 0, 1, 0, 3, 12, 5, 576)
    yield "header-plan", message_header(2, 5, 0, 2, 0, 0, 0, 230, 1)
    yield "header-empty", message_header(4, 5, 2, 0, 1, 0, 0, 0, 0)
    yield "plan-prefill", step_plan(0, 4, [(0, 0, 1, 0, [1, 2, 3], [[0], [1]]), (1, 1, 2, 40, [4, 5], [[2, 3], [-1, 4]])], b"note")
    yield "plan-decode", step_plan(0, 5, [(7, 0, 1, 33, [9], [[5, 6], [6, 5]])])
    yield "plan-stop", step_plan(2, 9, [])
    params = struct.pack("<fifffff4xQi4x", 0.7, 40, 0.9, 0.0, 1.1, 0.0, 0.0, 42, -1)
    yield "note", b"n" + struct.pack("<Ii", 1, 3) + params + counted("i", [1, 2]) + counted("i", [5, -1])
    yield "result", b"r" + struct.pack("<Iiqif", 1, 3, 17, 42, -0.5) + struct.pack("<Iif", 1, 42, -0.5) + counted("f", [0.5, 1.5])


def main():
    for name, corpus in sorted(globals().items()):
        if not name.endswith("_corpus"):
            continue
        folder = HERE / name.removesuffix("_corpus")
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in corpus():
            (folder / file).write_bytes(content)


main()
