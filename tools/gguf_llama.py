"""Loads a Llama GGUF file into transformers: dequantized weights and its byte-level tokenizer.

For reference figures only (transformers' own GGUF loader needs a tokenizer class per family and
keeps weights in float32 of its own choice of layout). The dequantization is gguf-py's.
"""

import pathlib
import sys

import gguf
import numpy as np
import tokenizers
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from make_goldens import in_float64  # noqa: E402,F401  (part of this module's interface)


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """q or k rows from rotated neighbours (GGUF) back to rotated halves (Hugging Face)."""
    shape = rows.shape
    return (rows.reshape(heads, shape[0] // heads // 2, 2, *shape[1:])
            .swapaxes(1, 2).reshape(shape))


def load_model(path: str):
    """A float32 LlamaForCausalLM with the file's dequantized weights, plain attention."""
    reader = gguf.GGUFReader(path)
    key = lambda name: reader.fields["llama." + name].contents()  # noqa: E731
    tensors = {t.name: t for t in reader.tensors}
    heads, key_heads = key("attention.head_count"), key("attention.head_count_kv")
    config = transformers.LlamaConfig(
        vocab_size=int(tensors["token_embd.weight"].shape[1]),
        hidden_size=key("embedding_length"), intermediate_size=key("feed_forward_length"),
        num_hidden_layers=key("block_count"), num_attention_heads=heads,
        num_key_value_heads=key_heads, max_position_embeddings=key("context_length"),
        rms_norm_eps=key("attention.layer_norm_rms_epsilon"), rope_theta=key("rope.freq_base"),
        tie_word_embeddings="output.weight" not in tensors, attn_implementation="eager")
    config.rope_parameters["rope_theta"] = key("rope.freq_base")
    if "rope_freqs.weight" in tensors:
        raise SystemExit(f"{path}: rope_freqs.weight is not supported here")
    model = transformers.LlamaForCausalLM(config).float().eval()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    wanted, state = model.state_dict(), {}
    for name, value in wanted.items():
        tensor = tensors.get(names.get_name(name, try_suffixes=(".weight",)))
        if name == "lm_head.weight" and tensor is None:
            tensor = tensors["token_embd.weight"]
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if "q_proj" in name:
            weights = unpermute(weights, heads)
        if "k_proj" in name:
            weights = unpermute(weights, key_heads)
        state[name] = torch.from_numpy(np.array(weights, np.float32)).reshape(value.shape)
    model.load_state_dict(state)
    return model


def load_tokenizer(path: str) -> tokenizers.Tokenizer:
    """The file's byte-level BPE, for the pre-tokenizer `smollm` (single digits, then GPT-2's)."""
    fields = gguf.GGUFReader(path, "r").fields
    value = lambda name: fields["tokenizer.ggml." + name].contents()  # noqa: E731
    if (value("model"), value("pre")) != ("gpt2", "smollm"):
        raise SystemExit(f"{path}: tokenizer {value('model')}/{value('pre')}, wanted gpt2/smollm")
    tokens = value("tokens")
    merges = [tuple(line.split(" ")) for line in value("merges")]
    out = tokenizers.Tokenizer(tokenizers.models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    out.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
    out.decoder = tokenizers.decoders.ByteLevel()
    out.add_special_tokens([t for t, kind in zip(tokens, value("token_type")) if kind == 3])
    return out
