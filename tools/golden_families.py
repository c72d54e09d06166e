"""The tiny models that make_goldens.py writes: one entry per folder of tests/golden/models.

Each entry holds a config.json in the layout that Hugging Face folders have, most of them as the
released models of that family are written (transformers 4 keys: rope_theta, rope_scaling,
torch_dtype), some as transformers 5 writes them (rope_parameters, dtype). Windows and RoPE
thresholds are far below the length of the long prompt, so that a mistake in them moves logits.
"""

from dataclasses import dataclass, field


@dataclass
class Family:
    """One tiny model: its config.json and how it is stored."""

    config: dict
    dtype: str = "F32"  # of the stored tensors: F32, F16, BF16
    shards: int = 1  # more than one: model-0000i-of-0000n.safetensors with an index
    long_tokens: int = 61
    short_tokens: int = 11
    grid: str = ""  # "F16": matrices hold only values that F16 represents, for the GGUF twin
    gguf: str = ""  # the GGUF twin's type of the matrices ("" = no twin)
    stray: bool = False  # also a safetensors file that is not part of the model
    tied_copy: bool = False  # the tied head stands in the file, too, equal to the embedding
    # What a reader that gets one key wrong would see: name -> changed keys. make_goldens.py records
    # how far the long prompt's logits move.
    mistakes: dict = field(default_factory=dict)


def _config(kind: str, architecture: str, **keys) -> dict:
    base = dict(
        architectures=[architecture],
        model_type=kind,
        vocab_size=131,
        hidden_size=32,
        intermediate_size=59,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        hidden_act="silu",
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        tie_word_embeddings=False,
        attention_bias=False,
        attention_dropout=0.0,
        initializer_range=0.02,
        use_cache=True,
        bos_token_id=1,
        eos_token_id=2,
        torch_dtype="float32",
        transformers_version="4.46.0",
    )
    base.update(keys)
    return {key: value for key, value in base.items() if value != "absent"}


def _llama(**keys) -> dict:
    return _config("llama", "LlamaForCausalLM", mlp_bias=False, **keys)


_YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}

_SHORT = [1.0, 1.02, 1.05, 1.1, 1.25, 1.3, 1.45, 1.6]
_LONG = [1.0, 1.3, 1.9, 2.75, 4.0, 5.5, 7.25, 9.0]

FAMILIES: dict[str, Family] = {
    # Llama 2: as many key as query heads, a plain head, 5 layers.
    "llama2": Family(
        _llama(num_hidden_layers=5, num_key_value_heads=4, hidden_size=24, intermediate_size=53,
               rms_norm_eps=1e-5, rope_scaling=None),
    ),
    # Llama 3.1: wavelengths 6.3 (kept), 13.7 and 29.7 (the smooth band 12..48), 64 and more
    # (divided by 8); eos_token_id is a list.
    "llama3": Family(
        _llama(head_dim=16, rope_theta=500.0, max_position_embeddings=384, eos_token_id=[2, 3, 5],
               rope_scaling={"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 48, "rope_type": "llama3"}),
        grid="F16", gguf="F16", shards=3,
        mistakes={"no scaling": {"rope_scaling": None},
                  "no smooth band": {"rope_scaling": {
                      "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0001,
                      "original_max_position_embeddings": 48, "rope_type": "llama3"}}},
    ),
    # Linear scaling under the old key "type".
    "llama-linear": Family(
        _llama(num_hidden_layers=4, intermediate_size=43,
               rope_scaling={"type": "linear", "factor": 4.0}),
        mistakes={"no scaling": {"rope_scaling": None}},
    ),
    # YaRN, written as transformers 5 writes it.
    "llama-yarn": Family(
        _llama(head_dim=16, rope_theta="absent", rope_scaling="absent", torch_dtype="absent",
               dtype="float16", rope_parameters=_YARN, max_position_embeddings=128,
               transformers_version="5.24.0"),
        dtype="F16", gguf="F16",
        mistakes={"no scaling": {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
                  "no attention factor": {"rope_parameters": _YARN | {"attention_factor": 1.0}}},
    ),
    # Mistral: window of 17 tokens (the token itself counts), head size that is not width / heads.
    "mistral": Family(
        _config("mistral", "MistralForCausalLM", hidden_size=40, head_dim=12, intermediate_size=61,
                sliding_window=17, attention_bias="absent", torch_dtype="float16"),
        dtype="F16", stray=True,
        mistakes={"no window": {"sliding_window": None}, "window off by one": {"sliding_window": 18}},
    ),
    # SmolLM2: tied head, 9 query heads on 3 key heads.
    "smollm2": Family(
        _llama(hidden_size=54, num_attention_heads=9, num_key_value_heads=3, intermediate_size=71,
               rope_theta=100000, tie_word_embeddings=True, torch_dtype="bfloat16"),
        dtype="BF16", gguf="BF16",
    ),
    # Qwen2: biases on q, k, v; a window that use_sliding_window false switches off.
    "qwen2": Family(
        _config("qwen2", "Qwen2ForCausalLM", hidden_size=36, num_attention_heads=6, intermediate_size=55,
                rope_theta=1000000.0, rms_norm_eps=1e-6, use_sliding_window=False,
                sliding_window=13, max_window_layers=1, attention_bias="absent",
                rope_scaling="absent"),
        grid="F16", gguf="F16",
        mistakes={"window applied": {"use_sliding_window": True}},
    ),
    # Qwen2 with the window switched on from the second layer.
    "qwen2-window": Family(
        _config("qwen2", "Qwen2ForCausalLM", hidden_size=36, num_attention_heads=6, intermediate_size=45,
                rope_theta=1000000.0, rms_norm_eps=1e-6, use_sliding_window=True,
                sliding_window=13, max_window_layers=1, attention_bias="absent",
                rope_scaling="absent", torch_dtype="bfloat16", tie_word_embeddings=True),
        dtype="BF16", tied_copy=True,
        mistakes={"no window": {"use_sliding_window": False},
                  "window in every layer": {"max_window_layers": 0}},
    ),
    # Qwen3: norms on q and k, head size 16 with width 40 and 3 heads, tied.
    "qwen3": Family(
        _config("qwen3", "Qwen3ForCausalLM", hidden_size=40, head_dim=16, num_attention_heads=3,
                num_key_value_heads=1, intermediate_size=67, rms_norm_eps=1e-6,
                rope_theta=1000000, use_sliding_window=False, sliding_window=None,
                max_window_layers=3, tie_word_embeddings=True, torch_dtype="bfloat16"),
        dtype="BF16", gguf="BF16",
    ),
    # Mixtral: 5 experts, 2 chosen.
    "mixtral": Family(
        _config("mixtral", "MixtralForCausalLM", intermediate_size=25, num_local_experts=5,
                num_experts_per_tok=2, sliding_window=None, rope_theta=1000000.0,
                output_router_logits=False, router_aux_loss_coef=0.02, router_jitter_noise=0.0,
                attention_bias="absent", rope_scaling="absent", torch_dtype="float16"),
        dtype="F16", gguf="F16", long_tokens=53,
    ),
    # Qwen3-MoE: weights of the chosen experts are normalized; the second layer is dense.
    "qwen3_moe": Family(
        _config("qwen3_moe", "Qwen3MoeForCausalLM", head_dim=12, num_hidden_layers=4,
                intermediate_size=47, moe_intermediate_size=14, num_experts=7,
                num_experts_per_tok=3, norm_topk_prob=True, decoder_sparse_step=1,
                mlp_only_layers=[1], rms_norm_eps=1e-6, rope_theta=1000000.0,
                use_sliding_window=False, sliding_window=None, max_window_layers=4,
                output_router_logits=False, router_aux_loss_coef=0.001, torch_dtype="float16"),
        dtype="F16", long_tokens=53,
        mistakes={"weights not normalized": {"norm_topk_prob": False}},
    ),
    # Qwen3-MoE without that normalization; every second layer is routed.
    "qwen3_moe-raw": Family(
        _config("qwen3_moe", "Qwen3MoeForCausalLM", head_dim=12, num_hidden_layers=4,
                intermediate_size=47, moe_intermediate_size=14, num_experts=6,
                num_experts_per_tok=2, norm_topk_prob=False, decoder_sparse_step=2,
                mlp_only_layers=[], rms_norm_eps=1e-6, rope_theta=1000000.0,
                use_sliding_window=False, sliding_window=None, max_window_layers=4,
                output_router_logits=False, router_aux_loss_coef=0.001, torch_dtype="bfloat16"),
        dtype="BF16", long_tokens=53,
        mistakes={"weights normalized": {"norm_topk_prob": True}},
    ),
    # Qwen3-MoE, all layers routed, for the GGUF twin (whose format has no dense layers there).
    "qwen3_moe-all": Family(
        _config("qwen3_moe", "Qwen3MoeForCausalLM", head_dim=12, num_hidden_layers=3,
                intermediate_size=47, moe_intermediate_size=14, num_experts=6,
                num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=1,
                mlp_only_layers=[], rms_norm_eps=1e-6, rope_theta=1000000.0,
                use_sliding_window=False, sliding_window=None, max_window_layers=4,
                output_router_logits=False, router_aux_loss_coef=0.001, torch_dtype="float16"),
        dtype="F16", gguf="F16", long_tokens=53,
    ),
    # Phi-3: q, k, v in one matrix, gate and up in another; a window of 29.
    "phi3": Family(
        _config("phi3", "Phi3ForCausalLM", original_max_position_embeddings=512,
                pad_token_id=0, sliding_window=29, embd_pdrop=0.0, resid_pdrop=0.0,
                torch_dtype="float16"),
        dtype="F16", gguf="F16",
        mistakes={"no window": {"sliding_window": None}},
    ),
    # Phi-3 with LongRoPE (more than 32 tokens take the long factors), no window.
    "phi3-longrope": Family(
        _config("phi3", "Phi3ForCausalLM", num_attention_heads=2, num_key_value_heads=2,
                max_position_embeddings=128, original_max_position_embeddings=32,
                pad_token_id=0, sliding_window=None, embd_pdrop=0.0, resid_pdrop=0.0,
                rope_scaling={"type": "longrope",
                              "short_factor": _SHORT,
                              "long_factor": _LONG}, torch_dtype="float16"),
        dtype="F16", gguf="F16", short_tokens=23,
        mistakes={"short factors": {"rope_scaling": {
                      "type": "longrope", "short_factor": _SHORT, "long_factor": _SHORT}},
                  "no attention factor": {"max_position_embeddings": 32}},
    ),
    # Gemma 2: soft caps on scores and logits, window of 15 in every other layer, scaled embedding,
    # norms that act as 1 + w, a score scale that is not the head size.
    "gemma2": Family(
        _config("gemma2", "Gemma2ForCausalLM", head_dim=12, num_hidden_layers=4,
                intermediate_size=45, hidden_act="gelu_pytorch_tanh",
                hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6,
                query_pre_attn_scalar=20, sliding_window=15, attn_logit_softcapping=5.0,
                final_logit_softcapping=8.0, tie_word_embeddings="absent", pad_token_id=0,
                rope_scaling="absent", cache_implementation="hybrid"),
        mistakes={"no cap of scores": {"attn_logit_softcapping": None},
                  "no cap of logits": {"final_logit_softcapping": None},
                  "scale from the head size": {"query_pre_attn_scalar": 12},
                  "exact GELU": {"hidden_activation": "gelu"},
                  "no window": {"sliding_window": 512}},
    ),
    # Gemma 2 whose score scale is the head size, the only one that its GGUF file can say.
    "gemma2-plain": Family(
        _config("gemma2", "Gemma2ForCausalLM", head_dim=8, num_hidden_layers=4,
                intermediate_size=35, hidden_act="gelu_pytorch_tanh",
                hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6,
                query_pre_attn_scalar=8, sliding_window=15, attn_logit_softcapping=5.0,
                final_logit_softcapping=8.0, tie_word_embeddings="absent", pad_token_id=0,
                rope_scaling="absent", cache_implementation="hybrid", torch_dtype="bfloat16"),
        dtype="BF16", gguf="BF16",
    ),
    # Gemma 3 (text): five local layers (window of 15, theta 10000) and then a global one (theta
    # 1e6, linear scaling by 8), norms on q and k.
    "gemma3": Family(
        _config("gemma3_text", "Gemma3ForCausalLM", head_dim=8, num_hidden_layers=7,
                num_key_value_heads=1, intermediate_size=35, hidden_act="absent",
                hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, rope_theta=1000000,
                rope_local_base_freq=10000, rope_scaling={"factor": 8.0, "rope_type": "linear"},
                sliding_window=15, sliding_window_pattern=6, query_pre_attn_scalar=8,
                attn_logit_softcapping=None, final_logit_softcapping=None,
                tie_word_embeddings="absent", pad_token_id=0, cache_implementation="hybrid",
                torch_dtype="bfloat16"),
        dtype="BF16", gguf="BF16",
        mistakes={"no scaling": {"rope_scaling": None},
                  "one theta": {"rope_local_base_freq": 1000000},
                  "window in every layer": {"sliding_window_pattern": 8},
                  "no window": {"sliding_window": 512},
                  "exact GELU": {"hidden_activation": "gelu"}},
    ),
}
