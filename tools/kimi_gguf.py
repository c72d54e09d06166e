"""Writes the folders of tools/make_kimi_goldens.py as GGUF files, as llama.cpp's converter would:
architectures deepseek2, kimi-linear and kimi-k3, kv_b_proj in two tensors with transposed keys,
experts stacked, A_log as -exp(A_log), a depth read's query and key norm multiplied into one."""

import gguf
import numpy as np

EXPERTS = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up",
           "down_proj": "down"}
LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.q_conv1d": "ssm_conv1d_q", "self_attn.k_conv1d": "ssm_conv1d_k",
    "self_attn.v_conv1d": "ssm_conv1d_v", "self_attn.f_a_proj": "ssm_f_a",
    "self_attn.f_b_proj": "ssm_f_b", "self_attn.b_proj": "ssm_beta",
    "self_attn.g_a_proj": "ssm_g_a", "self_attn.g_b_proj": "ssm_g_b",
    "self_attn.o_norm": "ssm_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "moe.gate": "ffn_gate_inp",
    "moe.shared_experts.gate_proj": "ffn_gate_shexp", "moe.shared_experts.up_proj": "ffn_up_shexp",
    "moe.shared_experts.down_proj": "ffn_down_shexp",
    "moe.routed_expert_down_proj": "ffn_routed_down", "moe.routed_expert_norm": "ffn_routed_norm",
    "moe.routed_expert_up_proj": "ffn_routed_up",
}


def convert(config, tensors):
    """GGUF names and values; None for what a file does not hold."""
    linear = config.get("linear_attn_config")
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    out, experts = {}, {}
    for key, value in tensors.items():
        if not key.startswith("model.layers."):
            name = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
                    "model.norm.weight": "output_norm.weight"}.get(key)
            if key == "model.output_attn_res_proj.weight":
                name = "output_res_score.weight"
                value = value.ravel() * tensors["model.output_attn_res_norm.weight"]
            if name:
                out[name] = value
            continue
        layer, rest = key.removeprefix("model.layers.").split(".", 1)
        delta = linear is not None and int(layer) + 1 in linear["kda_layers"]
        rest = rest.replace("block_sparse_moe.", "moe.")
        for part in ("gate.", "experts.", "shared_experts."):
            rest = rest.replace("mlp." + part, "moe." + part)
        blk = f"blk.{layer}."
        if rest.startswith("moe.experts."):
            _, _, expert, part, _ = rest.split(".")
            name = f"{blk}ffn_{EXPERTS[part]}_exps.weight"
            experts.setdefault(name, {})[int(expert)] = value
        elif rest == "self_attn.kv_b_proj.weight":
            both = value.reshape(heads, -1, value.shape[-1])
            out[blk + "attn_k_b.weight"] = both[:, :nope].swapaxes(1, 2)
            out[blk + "attn_v_b.weight"] = both[:, nope:]
        elif rest == "self_attn.A_log":
            a = -np.exp(value.ravel()[:linear["num_heads"]].astype(np.float64)).astype(np.float32)
            out[blk + "ssm_a"] = a if "gate_lower_bound" in linear else a.reshape(1, -1, 1)
        elif rest == "self_attn.dt_bias":
            out[blk + "ssm_dt.bias"] = value
        elif rest == "moe.gate.e_score_correction_bias":
            out[blk + "exp_probs_b.bias"] = value
        elif rest == "self_attn.g_proj.weight":
            out[blk + ("ssm_g" if delta else "attn_gate") + ".weight"] = value
        elif rest == "self_attention_res_proj.weight" and layer == "0":
            continue  # nothing reads it
        elif "_res_proj" in rest:
            which = "attn_res_score" if rest.startswith("self") else "ffn_res_score"
            out[f"{blk}{which}.weight"] = value.ravel() * tensors[key.replace("_proj", "_norm")]
        elif "_res_norm" not in rest:
            name = LAYER[rest.removesuffix(".weight")]
            out[f"{blk}{name}.weight"] = value[None] if "conv1d" in name else value
    for name, parts in experts.items():
        out[name] = np.stack([parts[e] for e in range(len(parts))])
    return out


def mxfp4_bytes(digits, scales):
    """Blocks of a scale and 16 bytes: numbers 0 to 15 in their low halves, 16 to 31 in the high."""
    digits = digits.reshape(*scales.shape, 32)
    packed = digits[..., :16] | digits[..., 16:] << 4
    return np.concatenate([scales[..., None], packed], -1).reshape(scales.shape[0], -1)


def write(config, tensors, path, blocks=None):
    """`config`: the text model's keys; `tensors`: numpy float32 by Hugging Face names; `blocks`:
    digits and scales of those that are written as MXFP4."""
    deepseek = config["model_type"] == "deepseek_v3"
    block = config.get("attn_res_block_size")
    arch = "deepseek2" if deepseek else "kimi-k3" if block else "kimi-linear"
    w = gguf.GGUFWriter(path, arch)
    linear = config.get("linear_attn_config")
    layers = config["num_hidden_layers"]

    def integer(key, value):
        w.add_uint32(f"{arch}.{key}", int(value))

    def number(key, value):
        w.add_float32(f"{arch}.{key}", float(value))

    latent, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    integer("block_count", layers)
    integer("context_length", config.get("max_position_embeddings") or config["model_max_length"])
    integer("embedding_length", config["hidden_size"])
    integer("feed_forward_length", config["intermediate_size"])
    integer("attention.head_count", config["num_attention_heads"])
    number("attention.layer_norm_rms_epsilon", config["rms_norm_eps"])
    if config["q_lora_rank"]:
        integer("attention.q_lora_rank", config["q_lora_rank"])
    integer("attention.kv_lora_rank", latent)
    integer("attention.key_length", latent + rope)
    integer("attention.value_length", latent)
    integer("attention.key_length_mla", config["qk_nope_head_dim"] + rope)
    integer("attention.value_length_mla", config["v_head_dim"])
    integer("rope.dimension_count", rope)
    names = (("n_routed_experts", "num_experts_per_tok", "n_shared_experts", "norm_topk_prob",
              "n_group") if deepseek else
             ("num_experts", "num_experts_per_token", "num_shared_experts", "moe_renormalize",
              "num_expert_group"))
    integer("expert_count", config[names[0]])
    integer("expert_used_count", config[names[1]])
    integer("expert_shared_count", config[names[2]])
    w.add_bool(f"{arch}.expert_weights_norm", config[names[3]])
    integer("expert_group_count", config[names[4]])
    integer("expert_group_used_count", config["topk_group"])
    integer("expert_feed_forward_length", config["moe_intermediate_size"])
    number("expert_weights_scale", config["routed_scaling_factor"])
    integer("expert_gating_func", 2)
    integer("leading_dense_block_count", config["first_k_dense_replace"])
    if deepseek:
        scaling = config["rope_scaling"]
        integer("attention.head_count_kv", 1)
        number("rope.freq_base", config["rope_theta"])
        w.add_string(f"{arch}.rope.scaling.type", "yarn")
        number("rope.scaling.factor", scaling["factor"])
        integer("rope.scaling.original_context_length", scaling["original_max_position_embeddings"])
        number("rope.scaling.yarn_log_multiplier", 0.1 * scaling["mscale_all_dim"])
    else:
        kinds = [0 if i + 1 in linear["kda_layers"] else 1 for i in range(layers)]
        w.add_array(f"{arch}.attention.head_count_kv", kinds)
        integer("ssm.conv_kernel", linear["short_conv_kernel_size"])
        integer("kda.head_dim", linear["head_dim"])
        if block:
            number("kda.gate_lower_bound", linear["gate_lower_bound"])
            integer("expert_latent_length", config["routed_expert_hidden_size"])
            number("activation.situ_beta", config["activation_situ_beta"])
            number("activation.situ_linear_beta", config["activation_situ_linear_beta"])
            integer("attn_res.block_size", block)
    w.add_tokenizer_model("no_vocab")
    digits = convert(config, tensors | {k: mxfp4_bytes(*v) for k, v in (blocks or {}).items()})
    for name, value in convert(config, tensors).items():
        if digits[name].dtype == np.uint8:
            w.add_tensor(name, np.ascontiguousarray(digits[name]),
                         raw_dtype=gguf.GGMLQuantizationType.MXFP4)
            continue
        value = np.ascontiguousarray(value, np.float32)
        if value.ndim >= 2 and "conv1d" not in name and name.endswith("weight"):
            w.add_tensor(name, gguf.quants.quantize(value, gguf.GGMLQuantizationType.BF16),
                         raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            w.add_tensor(name, value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
