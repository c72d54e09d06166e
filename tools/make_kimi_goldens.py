#!/usr/bin/env python3
"""Makes tests/golden/models/{deepseek_v3,kimi_linear,kimi_k3,kimi_k3_mxfp4}: small random checkpoints
with their float64 logits from tools/kimi_reference.py, in the form of tools/make_goldens.py.

    python3 tools/make_kimi_goldens.py [--out tests/golden/models] [--gradients] [--check] [NAME ...]
    python3 tools/make_kimi_goldens.py --gradient-goldens tests/golden/gradients [NAME ...]

Needs torch (CPU), safetensors, numpy and gguf from PyPI; no part of any test run. With --check (and
transformers) the reference itself is compared with transformers' float64 runs of DeepSeek-V3 and
Kimi Linear: transformers 5.24 and torch 2.15 agreed to 2.6e-8 (L2 norm over L2 norm), which is the
rounding of the committed float32 logits. --gradient-goldens writes gradients of the folders as
committed.
"""

import argparse
import hashlib
import importlib.metadata
import json
import pathlib
import sys
import tempfile

import numpy as np
import safetensors.torch
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import kimi_gguf  # noqa: E402
import kimi_reference  # noqa: E402

SEED = 20261130
ROUTER_MARGIN = 0.02  # of scores between 0 and 1: rounding must not flip a choice
GREEDY_MARGIN = 2e-3
VOCABULARY = 96
MODELS = {
    "deepseek_v3": {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64,
        "moe_intermediate_size": 16, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 4, "n_shared_experts": 1, "n_routed_experts": 8,
        "routed_scaling_factor": 2.5, "kv_lora_rank": 32, "q_lora_rank": 32,
        "qk_rope_head_dim": 8, "v_head_dim": 12, "qk_nope_head_dim": 16, "n_group": 4,
        "topk_group": 2, "num_experts_per_tok": 3, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "norm_topk_prob": True, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "hidden_act": "silu", "max_position_embeddings": 640,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "attention_bias": False,
        "rope_theta": 10000.0, "rope_scaling": {
            "type": "yarn", "factor": 10.0, "original_max_position_embeddings": 64,
            "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.8, "mscale_all_dim": 0.8},
        "bos_token_id": 0, "eos_token_id": 1, "num_nextn_predict_layers": 1,
    },
    "kimi_linear": {
        "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear",
        "vocab_size": VOCABULARY, "hidden_size": 32, "head_dim": 8, "intermediate_size": 64,
        "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 4,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
        "model_max_length": 1024, "linear_attn_config": {
            "full_attn_layers": [4, 5], "kda_layers": [1, 2, 3], "num_heads": 4, "head_dim": 16,
            "short_conv_kernel_size": 4},
        "q_lora_rank": None, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 16, "mla_use_nope": True, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "num_experts": 8, "num_experts_per_token": 2, "num_shared_experts": 1,
        "moe_intermediate_size": 16, "moe_renormalize": True, "routed_scaling_factor": 2.446,
        "moe_router_activation_func": "sigmoid", "num_expert_group": 1, "topk_group": 1,
        "bos_token_id": 0, "eos_token_id": 1,
    },
    "kimi_k3": {
        "architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3",
        "bos_token_id": 0, "eos_token_id": 1, "vision_config": {"hidden_size": 8},
        "text_config": {
            "model_type": "kimi_linear", "vocab_size": VOCABULARY, "hidden_size": 32,
            "intermediate_size": 64, "num_hidden_layers": 9, "num_attention_heads": 4,
            "num_key_value_heads": 4, "hidden_act": "situ", "activation_situ_beta": 4.0,
            "activation_situ_linear_beta": 25.0, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False, "max_position_embeddings": 1024,
            "linear_attn_config": {
                "full_attn_layers": [4, 8, 9], "kda_layers": [1, 2, 3, 5, 6, 7], "num_heads": 4,
                "head_dim": 16, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0,
                "use_full_rank_gate": True},
            "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
            "v_head_dim": 12, "mla_use_nope": True, "mla_use_output_gate": True,
            "attn_res_block_size": 4, "first_k_dense_replace": 1, "moe_layer_freq": 1,
            "num_experts": 8, "num_experts_per_token": 2, "num_shared_experts": 2,
            "moe_intermediate_size": 12, "routed_expert_hidden_size": 16,
            "latent_moe_use_norm": True, "moe_renormalize": True, "routed_scaling_factor": 1.0,
            "moe_router_activation_func": "sigmoid", "num_expert_group": 1, "topk_group": 1,
        },
    },
}
# Experts in 4 bits as released; flat, without wrapper and prefix.
MODELS["kimi_k3_mxfp4"] = MODELS["kimi_k3"]["text_config"] | {
    "architectures": ["KimiLinearForCausalLM"], "bos_token_id": 0, "eos_token_id": 1,
    "num_hidden_layers": 5, "attn_res_block_size": 2, "num_experts": 4,
    "linear_attn_config": MODELS["kimi_k3"]["text_config"]["linear_attn_config"] | {
        "full_attn_layers": [4, 5], "kda_layers": [1, 2, 3], "num_heads": 3},
    "moe_intermediate_size": 32, "routed_expert_hidden_size": 64,
    "quantization_config": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
PADDED_HEADS = 16  # Kimi K3 stores A_log padded to the head size


def generator(*parts):
    digest = hashlib.sha256("/".join(map(str, (SEED, *parts))).encode()).digest()
    return np.random.Generator(np.random.Philox(int.from_bytes(digest[:8], "little")))


def attention_shapes(c, i):
    hidden = c["hidden_size"]
    linear = c.get("linear_attn_config")
    if linear and i + 1 in linear["kda_layers"]:
        heads, dim, taps = linear["num_heads"], linear["head_dim"], linear["short_conv_kernel_size"]
        width = heads * dim
        out = {f"{n}_proj.weight": (width, hidden) for n in "qkv"}
        out |= {f"{n}_conv1d.weight": (width, 1, taps) for n in "qkv"}
        out |= {"f_a_proj.weight": (dim, hidden), "f_b_proj.weight": (width, dim),
                "dt_bias": (width,), "b_proj.weight": (heads, hidden), "o_norm.weight": (dim,),
                "o_proj.weight": (hidden, width)}
        out["A_log"] = (PADDED_HEADS,) if "gate_lower_bound" in linear else (1, 1, heads, 1)
        if linear.get("use_full_rank_gate"):
            return out | {"g_proj.weight": (width, hidden)}
        return out | {"g_a_proj.weight": (dim, hidden), "g_b_proj.weight": (width, dim)}
    heads, nope, rope = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
    value, latent = c["v_head_dim"], c["kv_lora_rank"]
    out = {"kv_a_proj_with_mqa.weight": (latent + rope, hidden), "kv_a_layernorm.weight": (latent,),
           "kv_b_proj.weight": (heads * (nope + value), latent),
           "o_proj.weight": (hidden, heads * value)}
    if c["q_lora_rank"]:
        out |= {"q_a_proj.weight": (c["q_lora_rank"], hidden),
                "q_a_layernorm.weight": (c["q_lora_rank"],),
                "q_b_proj.weight": (heads * (nope + rope), c["q_lora_rank"])}
    else:
        out |= {"q_proj.weight": (heads * (nope + rope), hidden)}
    if c.get("mla_use_output_gate"):
        out |= {"g_proj.weight": (heads * value, hidden)}
    return out


def mlp_shapes(prefix, width, inner, names=("gate_proj", "up_proj", "down_proj")):
    gate, up, down = names
    return {f"{prefix}{gate}.weight": (inner, width), f"{prefix}{up}.weight": (inner, width),
            f"{prefix}{down}.weight": (width, inner)}


def feed_forward_shapes(c, i):
    hidden = c["hidden_size"]
    if i < c["first_k_dense_replace"]:
        return mlp_shapes("mlp.", hidden, c["intermediate_size"])
    deepseek = c["model_type"] == "deepseek_v3"
    block = "mlp." if deepseek else "block_sparse_moe."
    experts = c["n_routed_experts" if deepseek else "num_experts"]
    shared = c["n_shared_experts" if deepseek else "num_shared_experts"]
    width, inner = c.get("routed_expert_hidden_size", hidden), c["moe_intermediate_size"]
    names = ("gate_proj", "up_proj", "down_proj") if deepseek else ("w1", "w3", "w2")
    out = {block + "gate.weight": (experts, hidden),
           block + "gate.e_score_correction_bias": (experts,)}
    for e in range(experts):
        out |= mlp_shapes(f"{block}experts.{e}.", width, inner, names)
    out |= mlp_shapes(block + "shared_experts.", hidden, shared * inner)
    if width != hidden:
        out |= {block + "routed_expert_down_proj.weight": (width, hidden),
                block + "routed_expert_up_proj.weight": (hidden, width)}
    if c.get("latent_moe_use_norm"):
        out |= {block + "routed_expert_norm.weight": (width,)}
    return out


def shapes(c):
    hidden = c["hidden_size"]
    reads = {"_norm.weight": (hidden,), "_proj.weight": (1, hidden)}
    out = {"model.embed_tokens.weight": (VOCABULARY, hidden), "model.norm.weight": (hidden,),
           "lm_head.weight": (VOCABULARY, hidden)}
    for i in range(c["num_hidden_layers"]):
        prefix = f"model.layers.{i}."
        out |= {prefix + "input_layernorm.weight": (hidden,),
                prefix + "post_attention_layernorm.weight": (hidden,)}
        out |= {prefix + "self_attn." + k: v for k, v in attention_shapes(c, i).items()}
        out |= {prefix + k: v for k, v in feed_forward_shapes(c, i).items()}
        if c.get("attn_res_block_size"):
            for which in ("self_attention_res", "mlp_res"):
                out |= {prefix + which + k: v for k, v in reads.items()}
    if c.get("attn_res_block_size"):
        out |= {"model.output_attn_res" + k: v for k, v in reads.items()}
    return out


def random_tensor(c, model, name, shape):
    """Values so that scores, gates and logits spread, on bfloat16's grid."""
    draw = generator(model, name).standard_normal(shape)
    part = name.split(".")[-2] if name.endswith(".weight") else name.split(".")[-1]
    if part == "A_log":
        heads = c["linear_attn_config"]["num_heads"]
        value = np.where(np.arange(draw.size) < heads, 0.6 * draw.ravel(), 0).reshape(shape)
    elif part == "dt_bias":
        value = 1.5 * draw
    elif part == "e_score_correction_bias":
        value = 0.15 * draw
    elif part.endswith("norm"):
        value = 1.0 + 0.3 * np.clip(draw, -2.5, 2.5)
    elif part.endswith("conv1d"):
        value = 0.5 * draw
    elif part == "embed_tokens":
        value = draw
    elif part == "lm_head":
        value = draw * 2.4 / shape[-1] ** 0.5
    elif ".experts." in name and part in ("w2", "down_proj"):
        scale = 0.4 / max(c.get("routed_scaling_factor", 1.0), 1.0)
        value = draw * scale / shape[-1] ** 0.5  # a choice that rounding flips must not count for much
    elif part.endswith("res_proj"):
        value = draw / shape[-1] ** 0.5
    else:
        # Blocks start again from one branch in attention residuals: branches then carry the signal.
        branch = 0.9 if c.get("attn_res_block_size") else 1.3
        gain = {"o_proj": branch, "down_proj": branch, "w2": branch, "gate": 2.0, "f_b_proj": 1.5,
                "routed_expert_up_proj": 0.25}.get(part, 1.0)
        value = draw * gain / shape[-1] ** 0.5
    return torch.from_numpy(np.ascontiguousarray(value))


def mxfp4(value):
    """The nearest numbers in blocks of 32 with one power of two (OCP microscaling formats): digits
    [rows, columns] of sign and E2M1, scales [rows, columns / 32] as E8M0, and what they stand for."""
    blocks = value.reshape(value.shape[0], -1, 32)
    exponent = np.floor(np.log2(np.abs(blocks).max(-1, keepdims=True))) - 2
    scaled = np.abs(blocks) / 2.0**exponent
    digits = np.abs(scaled[..., None] - E2M1).argmin(-1)
    wide = np.sign(blocks) * E2M1[digits] * 2.0**exponent
    digits = np.where(blocks < 0, digits + 8, digits).astype(np.uint8)
    return (digits.reshape(value.shape), (exponent[..., 0] + 127).astype(np.uint8),
            wide.reshape(value.shape))


def stored_type(name):
    """As the released checkpoints keep them: float32 for what rounds badly, else bfloat16."""
    last = name.split(".")[-1] if not name.endswith(".weight") else name.split(".")[-2]
    wide = last in ("A_log", "dt_bias", "o_norm", "e_score_correction_bias")
    return torch.float32 if wide or last.endswith("conv1d") else torch.bfloat16


def prompts(model, reference):
    """A short and a long prompt whose routers choose clearly."""
    out = []
    for name, length in (("short", 11), ("long", 150 if model != "kimi_k3" else 90)):
        best, best_margin = None, -1.0
        for attempt in range(60 if length < 20 else 40):
            ids = generator(model, name, attempt).integers(2, VOCABULARY, length)
            with torch.no_grad():
                logits = reference.logits(torch.from_numpy(ids))
            if reference.margin > best_margin:
                best, best_margin = (ids, logits), reference.margin
            if best_margin > (ROUTER_MARGIN if length < 20 else ROUTER_MARGIN / 8):
                break
        out.append((name, *best, best_margin))
    return out


def greedy(reference, ids, count=12):
    ids, margins = list(ids), []
    for _ in range(count):
        with torch.no_grad():
            row = reference.logits(torch.tensor(ids))[-1]
        top = row.topk(2).values
        margins.append(((top[0] - top[1]) / row.norm() * len(row) ** 0.5).item())
        ids.append(int(row.argmax()))
    return ids[-count:], min(margins)


def relative(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


def gradients(config, weights, ids):
    leaves = {k: v.clone().requires_grad_(True) for k, v in weights.items()}
    logits = kimi_reference.Model(config, leaves).logits(ids)
    loss = torch.nn.functional.cross_entropy(logits[:-1], ids[1:])
    loss.backward()
    return loss.item(), {k: (torch.zeros_like(v) if v.grad is None else v.grad).detach()
                         for k, v in leaves.items()}


def write(folder, model, config, with_gradients):
    text = config.get("text_config", config)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*"):
        old.unlink()
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    stored = {k: random_tensor(text, model, k, s).to(stored_type(k)) for k, s in shapes(text).items()}
    blocks = {}
    for name in [k for k in stored if model.endswith("mxfp4") and ".experts." in k]:
        digits, scales, wide = mxfp4(stored[name].double().numpy())
        blocks[name] = (digits, scales)
        stored[name] = torch.from_numpy(wide).to(torch.bfloat16)  # exact
    wide = {k: v.double() for k, v in stored.items()}
    reference = kimi_reference.Model(text, wide)
    files = {("language_model." if "text_config" in config else "") + k: v.contiguous()
             for k, v in stored.items() if k not in blocks}
    for name, (digits, scales) in blocks.items():
        files[name + "_packed"] = torch.from_numpy(digits[:, 0::2] | digits[:, 1::2] << 4)
        files[name + "_scale"] = torch.from_numpy(scales)
    if "text_config" in config:
        files["vision_tower.patch_embed.weight"] = torch.zeros(8, 3, dtype=torch.bfloat16)
        files["mm_projector.0.weight"] = torch.zeros(4, 8, dtype=torch.bfloat16)
    safetensors.torch.save_file(files, folder / "model.safetensors", {"format": "pt"})
    (folder.parent / "gguf").mkdir(exist_ok=True)
    kimi_gguf.write(text, {k: v.float().numpy() for k, v in stored.items()},
                    folder.parent / "gguf" / f"{model}.gguf", blocks)
    golden = {"model": model, "generator": "tools/make_kimi_goldens.py",
              "versions": {p: importlib.metadata.version(p) for p in ("torch", "numpy")},
              "prompts": []}
    half = kimi_reference.Model(text, {k: v.float() for k, v in stored.items()}, torch.bfloat16)
    single = kimi_reference.Model(text, {k: v.float() for k, v in stored.items()})
    for name, ids, logits, margin in prompts(model, reference):
        np.save(folder / f"{name}.npy", logits.numpy().astype(np.float32))
        with torch.no_grad():
            half_error = relative(half.logits(torch.from_numpy(ids)), logits)
            single_error = relative(single.logits(torch.from_numpy(ids)), logits)
        entry = {"name": name, "tokens": ids.tolist(), "logits": f"{name}.npy",
                 "router_margin": margin, "transformers_f32_error": single_error,
                 "transformers_bf16_error": half_error}
        if name == "short":
            entry["greedy"], entry["greedy_margin"] = greedy(reference, ids)
        if name == "short" and with_gradients:
            entry["loss"], grads = gradients(text, wide, torch.from_numpy(ids))
            safetensors.torch.save_file({k: v.float().contiguous() for k, v in grads.items()},
                                        folder / "gradients.safetensors")
        golden["prompts"].append(entry)
        print(model, name, "margin", round(margin, 4), "f32", single_error, "bf16", half_error,
              entry.get("greedy_margin"))
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


def gradient_golden(models, out, model, config):
    """Gradients of the committed folder as fingerprints, in the form of make_gradient_goldens.py."""
    import make_gradient_goldens as form  # noqa: PLC0415
    text = config.get("text_config", config)
    prefix = "language_model." if "text_config" in config else ""
    stored = safetensors.torch.load_file(models / model / "model.safetensors")
    leaves = {k.removeprefix(prefix): v.double().requires_grad_(True) for k, v in stored.items()
              if k.startswith(prefix) and "vision_tower" not in k and "mm_projector" not in k}
    data = form.sequences(models / model)
    counted = sum(len(s) - 1 for s in data)
    total = 0.0
    for ids in data:
        ids = torch.tensor(ids)
        logits = kimi_reference.Model(text, leaves).logits(ids)[:-1]
        loss = torch.nn.functional.cross_entropy(logits, ids[1:], reduction="sum") / counted
        loss.backward()
        total += loss.item()
    named = {prefix + k: np.zeros(v.shape) if v.grad is None else v.grad.numpy()
             for k, v in leaves.items()}
    golden = {
        "generator": "tools/make_kimi_goldens.py", "model": model, "tokens": data, "loss": total,
        # GGUF multiplies a depth read's two factors into one, whose gradients cannot be told apart.
        "limit": 1e-4, "gguf": not text.get("attn_res_block_size"), "gradients": {
            k: {"norm": float(f"{np.linalg.norm(v):.10g}"),
                "projections": [float(f"{form.projection(v.size, n) @ v.ravel():.10g}")
                                for n in range(form.PROJECTIONS)]}
            for k, v in sorted(named.items())}}
    text = json.dumps(golden, indent=None, separators=(",", ":"))
    (out / f"{model}.json").write_text(text + "\n")
    print(f"{model}: loss {total:.6f}, {len(named)} tensors")


def check(folder, model):
    """The reference against transformers, both in float64."""
    import transformers  # noqa: PLC0415
    import make_goldens  # noqa: PLC0415
    golden = json.loads((folder / "golden.json").read_text())
    with tempfile.TemporaryDirectory() as wide:
        wide = pathlib.Path(wide)
        config = json.loads((folder / "config.json").read_text())
        config.setdefault("pad_token_id", 0)  # its default lies outside so small a vocabulary
        (wide / "config.json").write_text(json.dumps(config))
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        safetensors.torch.save_file({k: v.double() for k, v in tensors.items()},
                                    wide / "model.safetensors", {"format": "pt"})
        net = transformers.AutoModelForCausalLM.from_pretrained(wide, dtype=torch.float64,
                                                                attn_implementation="eager",
                                                                experts_implementation="eager")
        with make_goldens.float64_everywhere():
            for prompt in golden["prompts"]:
                want = torch.from_numpy(np.load(folder / prompt["logits"])).double()
                with torch.no_grad():
                    got = net(torch.tensor([prompt["tokens"]])).logits[0]
                print("check", model, prompt["name"], relative(got, want))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="tests/golden/models", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--gradients", action="store_true",
                        help="also gradients.safetensors, of the short prompt's mean next-token loss")
    parser.add_argument("--gradient-goldens", type=pathlib.Path, metavar="FOLDER",
                        help="writes only these, of the models as committed")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for model, config in MODELS.items():
        if arguments.names and model not in arguments.names:
            continue
        if arguments.gradient_goldens:
            if model.endswith("mxfp4"):
                continue  # of kimi_k3's operations
            gradient_golden(arguments.out, arguments.gradient_goldens, model, config)
        elif not arguments.check:
            write(arguments.out / model, model, config, arguments.gradients)
        elif not model.startswith("kimi_k3"):
            check(arguments.out / model, model)


if __name__ == "__main__":
    main()
