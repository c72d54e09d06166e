#!/usr/bin/env python3
"""Makes a random model of Kimi K3's topology for benchmarks, as a Hugging Face folder.

    python3 tools/make_random_kimi.py --out ~/.cache/penstock/models/random-kimi [--mxfp4]

Needs torch (CPU), safetensors and numpy from PyPI. The defaults are the model of
docs/performance.md: 24 layers, 1024 wide, latent attention in every 4th layer and the last, blocks
of 6 layers, 16 experts of which 4 are chosen, over a latent of 512: 0.59 billion parameters in
bfloat16. With --mxfp4 the experts are stored in 4 bits as the released checkpoint keeps them
(weight_packed, weight_scale). --plain leaves attention residuals out. There is no tokenizer: use
--tokens, or penstock bench.
"""

import argparse
import json
import pathlib
import sys

import numpy as np
import safetensors.torch
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import make_kimi_goldens  # noqa: E402


def configuration(a):
    last = a.layers
    full = sorted({i for i in range(1, last + 1) if i % 4 == 0} | {last})
    config = {
        "architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_linear",
        "vocab_size": a.vocabulary, "hidden_size": a.width, "intermediate_size": 4 * a.width,
        "num_hidden_layers": a.layers, "num_attention_heads": a.heads,
        "num_key_value_heads": a.heads, "hidden_act": "situ", "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
        "max_position_embeddings": 4096, "bos_token_id": 0, "eos_token_id": 1,
        "linear_attn_config": {
            "full_attn_layers": full, "kda_layers": [i for i in range(1, last + 1) if i not in full],
            "num_heads": a.heads, "head_dim": 128, "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0, "use_full_rank_gate": True},
        "q_lora_rank": a.width // 4, "kv_lora_rank": a.width // 4, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": True,
        "mla_use_output_gate": True, "attn_res_block_size": a.block, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "num_experts": a.experts, "num_experts_per_token": a.chosen,
        "num_shared_experts": 2, "moe_intermediate_size": a.width // 2,
        "routed_expert_hidden_size": a.width // 2, "latent_moe_use_norm": True,
        "moe_renormalize": True, "routed_scaling_factor": 1.0,
        "moe_router_activation_func": "sigmoid", "num_expert_group": 1, "topk_group": 1,
    }
    if a.plain:
        del config["attn_res_block_size"]
    return config


def mxfp4(name, shape, gain):
    """Random digits, one exponent: the numbers of an E2M1 digit have a deviation of 2.9."""
    rng = make_kimi_goldens.generator("mxfp4", name)
    rows, columns = shape
    exponent = 127 + round(np.log2(gain / 2.9 / columns**0.5))
    return (torch.from_numpy(rng.integers(0, 256, (rows, columns // 2), np.uint8)),
            torch.full((rows, columns // 32), exponent, dtype=torch.uint8))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--mxfp4", action="store_true")
    parser.add_argument("--plain", action="store_true")
    for name, value in (("layers", 24), ("width", 1024), ("heads", 8), ("experts", 16),
                        ("chosen", 4), ("block", 6), ("vocabulary", 32000)):
        parser.add_argument("--" + name, type=int, default=value)
    a = parser.parse_args()
    config = configuration(a)
    make_kimi_goldens.VOCABULARY = a.vocabulary
    make_kimi_goldens.PADDED_HEADS = 128
    tensors = {}
    for name, shape in make_kimi_goldens.shapes(config).items():
        if a.mxfp4 and ".experts." in name:
            packed, scale = mxfp4(name, shape, 0.4 if ".w2." in name else 1.0)
            tensors[name + "_packed"], tensors[name + "_scale"] = packed, scale
            continue
        value = make_kimi_goldens.random_tensor(config, "random-kimi", name, shape)
        tensors[name] = value.to(make_kimi_goldens.stored_type(name)).contiguous()
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    safetensors.torch.save_file(tensors, a.out / "model.safetensors", {"format": "pt"})
    print(f"{sum(t.numel() for t in tensors.values()) / 1e6:.1f} million numbers in {a.out}")


if __name__ == "__main__":
    main()
