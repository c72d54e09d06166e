"""Writes a Hugging Face folder as the GGUF file that llama.cpp's converter would make of it.

Only what the tiny goldens and the random Llama need: the conventions in which the two formats
differ are all here (permuted q and k of the Llama kind, RoPE divisors as a tensor, Gemma's norms
stored as 1 + w, experts stacked, dimensions in reverse order, which gguf-py does).
"""

import json
import math
import pathlib

import gguf
import numpy as np

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
}
EXPERTS = {"w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps",
           "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}


def read_folder(folder: pathlib.Path) -> dict:
    """All tensors of the folder's model (torch's), by name."""
    import safetensors.torch  # here, since what needs no folder needs no torch
    index = folder / "model.safetensors.index.json"
    files = (sorted(set(json.loads(index.read_text())["weight_map"].values()))
             if index.exists() else ["model.safetensors"])
    return {k: v for f in files for k, v in safetensors.torch.load_file(folder / f).items()}


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """q or k rows from rotated halves (Hugging Face) to rotated neighbours (GGUF's Llama kind)."""
    shape = rows.shape
    return (rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:])
            .swapaxes(1, 2).reshape(shape))


def rope_of(config: dict) -> tuple[float, dict]:
    """theta and the scaling dictionary, from transformers 4 or 5 keys."""
    parameters = config.get("rope_parameters")
    scaling = parameters or config.get("rope_scaling") or {}
    theta = parameters["rope_theta"] if parameters else config["rope_theta"]
    return theta, scaling


def llama3_divisors(theta: float, scaling: dict, size: int) -> np.ndarray:
    """rope_freqs.weight: what each frequency is divided by (Llama 3.1's rule)."""
    original = scaling["original_max_position_embeddings"]
    low = original / scaling["low_freq_factor"]
    high = original / scaling["high_freq_factor"]
    divisors = []
    for i in range(0, size, 2):
        wavelength = 2 * math.pi * theta ** (i / size)
        if wavelength < high:
            divisors.append(1.0)
        elif wavelength > low:
            divisors.append(scaling["factor"])
        else:
            smooth = ((original / wavelength - scaling["low_freq_factor"])
                      / (scaling["high_freq_factor"] - scaling["low_freq_factor"]))
            divisors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(divisors, np.float32)


def write_metadata(writer: gguf.GGUFWriter, config: dict) -> None:
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    theta, scaling = rope_of(config)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(float(theta))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_dimension_count(size)
    if "head_dim" in config:
        writer.add_key_length(size)
        writer.add_value_length(size)
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    if "num_experts_per_tok" in config:
        writer.add_expert_count(config.get("num_local_experts", config.get("num_experts")))
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if config["model_type"] == "phi3":
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
        writer.add_sliding_window(config["sliding_window"] or 0)
        if kind == "longrope":
            ratio = config["max_position_embeddings"] / config["original_max_position_embeddings"]
            writer.add_rope_scaling_attn_factors(
                math.sqrt(1 + math.log(ratio) / math.log(config["original_max_position_embeddings"])))
    if config["model_type"] == "gemma2":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config["model_type"] == "gemma3_text":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_float32("gemma3.rope.freq_base_swa", float(config["rope_local_base_freq"]))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("no_vocab")


def convert(config: dict, tensors: dict) -> dict[str, np.ndarray]:
    """GGUF names and float32 values (F16 and BF16 values are exact in float32)."""
    kind, layers = config["model_type"], config["num_hidden_layers"]
    names = gguf.get_tensor_name_map(ARCHITECTURES[kind], layers)
    heads, key_heads = config["num_attention_heads"], config["num_key_value_heads"]
    out, experts = {}, {}
    for key, tensor in tensors.items():
        value = tensor.float().numpy()
        if ".experts." in key:
            layer, expert, part = (key.split(".")[i] for i in (2, 5, 6))
            experts.setdefault(f"blk.{layer}.{EXPERTS[part]}.weight", {})[int(expert)] = value
            continue
        name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert name, f"no GGUF name for {key}"
        if ARCHITECTURES[kind] == gguf.MODEL_ARCH.LLAMA:
            if "q_proj" in key:
                value = permute(value, heads)
            elif "k_proj" in key:
                value = permute(value, key_heads)
        if kind.startswith("gemma") and "norm" in key:
            value = value + 1
        out[name] = value
    for name, rows in experts.items():
        out[name] = np.stack([rows[i] for i in range(len(rows))])
    theta, scaling = rope_of(config)
    if scaling.get("type") == "longrope":
        out["rope_factors_short.weight"] = np.array(scaling["short_factor"], np.float32)
        out["rope_factors_long.weight"] = np.array(scaling["long_factor"], np.float32)
    if scaling.get("rope_type") == "llama3":
        size = config.get("head_dim") or config["hidden_size"] // heads
        out["rope_freqs.weight"] = llama3_divisors(theta, scaling, size)
    return out


def write_twin(folder: pathlib.Path, path: pathlib.Path, matrix_type: str) -> None:
    """Writes `path` with the folder's weights, matrices in `matrix_type` (F32, F16 or BF16)."""
    config = json.loads((folder / "config.json").read_text())
    path.parent.mkdir(parents=True, exist_ok=True)
    architecture = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[config["model_type"]]]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(path.stem)
    write_metadata(writer, config)
    wide = gguf.GGMLQuantizationType[matrix_type]
    for name, value in convert(config, read_folder(folder)).items():
        plain = value.ndim == 1 or "ffn_gate_inp" in name  # as the converter does: float32
        if plain or matrix_type == "F32":
            writer.add_tensor(name, np.ascontiguousarray(value, np.float32))
            continue
        data = gguf.quants.quantize(value, wide)
        again = gguf.quants.dequantize(data, wide)
        assert np.array_equal(again, value), f"{name} is not exact in {matrix_type}"
        writer.add_tensor(name, data, raw_dtype=wide)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
