"""Variations of the Llama-like decoder in plain PyTorch: the reference for tests/golden/models.

Written from the formulas that docs/formats.md gives for each key of config.json, without a look at
how Penstock computes them: one residual stream or several as lists of tensors, no blocks of code
shared with a library. Any float type; rotary frequencies are computed in float64.
"""

import math

import torch
from torch.nn import functional as F


def rms_norm(x, weight, eps):
    y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


class Decoder:
    """config: the keys of config.json; weights: tensors by name."""

    def __init__(self, config, weights):
        self.c, self.w = config, weights
        self.eps = config["rms_norm_eps"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config["num_key_value_heads"]
        self.dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.layers = config["num_hidden_layers"]
        self.owners = config.get("shared_layers") or list(range(self.layers))

    # ---- sublayers ----

    def rope(self, x):
        n, half = x.shape[0], self.dim // 2
        inverse = self.c["rope_theta"] ** (
            -torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(n, dtype=torch.float64)[:, None] * inverse[None, :]
        cos, sin = angle.cos().to(x.dtype)[:, None, :], angle.sin().to(x.dtype)[:, None, :]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, x, prefix):
        w = self.w
        y = rms_norm(x, w[prefix + "input_layernorm.weight"], self.eps)
        n, prefix = x.shape[0], prefix + "self_attn."
        q = (y @ w[prefix + "q_proj.weight"].T).view(n, self.heads, self.dim)
        k = (y @ w[prefix + "k_proj.weight"].T).view(n, self.kv_heads, self.dim)
        v = (y @ w[prefix + "v_proj.weight"].T).view(n, self.kv_heads, self.dim)
        if self.c["model_type"] == "qwen3":
            q = rms_norm(q, w[prefix + "q_norm.weight"], self.eps)
            k = rms_norm(k, w[prefix + "k_norm.weight"], self.eps)
        q, k = self.rope(q), self.rope(k)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(self.dim)
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -math.inf)
        out = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(n, -1)
        return out @ w[prefix + "o_proj.weight"].T

    def mlp(self, x, prefix):
        y = rms_norm(x, self.w[prefix + "post_attention_layernorm.weight"], self.eps)
        prefix += "mlp."
        gate = y @ self.w[prefix + "gate_proj.weight"].T
        up = y @ self.w[prefix + "up_proj.weight"].T
        return (F.silu(gate) * up) @ self.w[prefix + "down_proj.weight"].T

    # ---- what joins them: generators of (kind, layer) -> input, which take the output back ----

    def read(self, sources, name):
        norm = self.w.get(name + "_norm.weight")
        query = self.w[name + "_proj.weight"][0]
        stack = torch.stack(sources)  # [sources, tokens, hidden]
        scores = (rms_norm(stack, norm, self.eps) * query).sum(-1)
        return (scores.softmax(0)[..., None] * stack).sum(0)

    def run_attention_residuals(self, embedding):
        keys = self.c["attention_residuals"]
        sublayers = 2 * self.layers
        size = 1 if keys["residual"] == "full" else keys["block_size"]
        sizes = size if isinstance(size, list) else [size] * (sublayers // size)
        if sum(sizes) < sublayers:
            sizes = [*sizes, sublayers - sum(sizes)]
        ends = {sum(sizes[: i + 1]) for i in range(len(sizes))}
        blocks, partial = [embedding], None

        def sources():
            return blocks + ([] if partial is None else [partial])

        def output():
            if keys.get("output", "attend") == "attend":
                return self.read(sources(), "model.output_attn_res")
            return torch.stack(sources()).sum(0)

        for i in range(sublayers):
            layer = i // 2
            name = f"model.layers.{layer}." + ("mlp_res" if i % 2 else "self_attention_res")
            owner = f"model.layers.{self.owners[layer]}."
            h = self.read(sources(), name)
            y = self.mlp(h, owner) if i % 2 else self.attention(h, owner)
            partial = y if partial is None else partial + y
            if i + 1 in ends:
                blocks.append(partial)
                partial = None
            if i % 2:
                self.exit(layer, output)
        return output()

    def run_streams(self, embedding):
        n = self.c["hyper_connections"]["streams"]
        dynamic = self.c["hyper_connections"]["mode"] == "dynamic"
        streams = [embedding] * n
        for i in range(2 * self.layers):
            layer = i // 2
            name = f"model.layers.{layer}." + ("mlp_streams" if i % 2 else "attention_streams")
            owner = f"model.layers.{self.owners[layer]}."
            share = [self.w[name + ".base"][k].expand(len(embedding), n + 2) for k in range(n)]
            if dynamic:
                scale = self.w[name + ".scale"]
                scale = torch.cat([scale[:1].expand(n + 1), scale[1:]])
                for k in range(n):
                    z = rms_norm(streams[k], self.w[name + ".norm.weight"], self.eps)
                    share[k] = share[k] + scale * torch.tanh(z @ self.w[name + ".mix"].T)
            h = sum(share[k][:, :1] * streams[k] for k in range(n))
            y = self.mlp(h, owner) if i % 2 else self.attention(h, owner)
            streams = [
                sum(share[k][:, j + 1 : j + 2] * streams[k] for k in range(n))
                + share[j][:, n + 1 :] * y
                for j in range(n)
            ]
            if i % 2:
                self.exit(layer, lambda: sum(streams))
        return sum(streams)

    def per_layer(self, x, embedding, layer, ids):
        p = f"model.layers.{layer}.per_layer_"
        width = self.c["per_layer_embeddings"]["width"]
        row = self.w[p + "embedding.weight"][ids] * width**0.5
        projected = rms_norm(embedding @ self.w[p + "projection.weight"].T,
                             self.w[p + "projection_norm.weight"], self.eps)
        e = (projected + row) / 2**0.5
        y = (F.silu(x @ self.w[p + "gate.weight"].T) * e) @ self.w[p + "up.weight"].T
        return rms_norm(y, self.w[p + "norm.weight"], self.eps)

    def run_plain(self, embedding, ids):
        x, outputs = embedding, []
        skips = sorted(self.c.get("skip_connections") or [], key=lambda s: (s[1], s[0]))
        for layer in range(self.layers):
            owner = f"model.layers.{self.owners[layer]}."
            for source, target in skips:
                if target == layer:
                    x = x + outputs[source]
            if self.c.get("use_parallel_residual"):
                x = x + self.attention(x, owner) + self.mlp(x, owner)
            else:
                x = x + self.attention(x, owner)
                x = x + self.mlp(x, owner)
            if "per_layer_embeddings" in self.c:
                x = x + self.per_layer(x, embedding, layer, ids)
            outputs.append(x)
            self.exit(layer, lambda: x)
        return x

    # ---- heads ----

    def head(self):
        tied = self.c["tie_word_embeddings"]
        return self.w["model.embed_tokens.weight" if tied else "lm_head.weight"]

    def exit(self, layer, value):
        keys = self.c.get("early_exits")
        if keys is None or layer not in keys["layers"]:
            return
        p = f"model.layers.{layer}."
        own = keys.get("head", "shared") == "own"
        z = rms_norm(value(), self.w[p + "exit_norm.weight"], self.eps)
        logits = z @ (self.w[p + "exit_head.weight"] if own else self.head()).T
        self.auxiliary.append((logits, keys.get("loss_weight", 0.3), 0))

    def predictions(self, h, ids):
        """Multi-token prediction; rows whose next ids are unknown hold anything."""
        depths = self.c.get("num_nextn_predict_layers", 0)
        for k in range(depths):
            p = f"model.layers.{self.layers + k}."
            later = torch.cat([ids[k + 1 :], ids[len(ids) - k - 1 :]])
            e = rms_norm(self.w["model.embed_tokens.weight"][later], self.w[p + "enorm.weight"],
                         self.eps)
            z = rms_norm(h, self.w[p + "hnorm.weight"], self.eps)
            x = torch.cat([e, z], -1) @ self.w[p + "eh_proj.weight"].T
            x = x + self.attention(x, p)
            h = x + self.mlp(x, p)
            z = rms_norm(h, self.w[p + "shared_head.norm.weight"], self.eps)
            weight = self.c.get("mtp_loss_weight", 0.3) / depths
            self.auxiliary.append((z @ self.head().T, weight, k + 1))

    def logits(self, ids):
        """ids: int64 [tokens]. Logits [tokens, vocabulary]; self.auxiliary: those of other heads,
        as (logits, weight of the loss, shift of the targets)."""
        self.auxiliary = []
        embedding = self.w["model.embed_tokens.weight"][ids]
        if "attention_residuals" in self.c:
            x = self.run_attention_residuals(embedding)
        elif "hyper_connections" in self.c:
            x = self.run_streams(embedding)
        else:
            x = self.run_plain(embedding, ids)
        self.predictions(x, ids)
        return rms_norm(x, self.w["model.norm.weight"], self.eps) @ self.head().T

    def loss(self, sequences):
        """Mean next-token cross-entropy over all sequences, and each auxiliary head's own mean."""
        sums, counts, weights = {}, {}, {}
        for ids in sequences:
            main = self.logits(ids)
            for head, (logits, weight, shift) in enumerate([(main, 1.0, 0), *self.auxiliary]):
                rows = len(ids) - 1 - shift
                if rows > 0:
                    nll = F.cross_entropy(logits[:rows], ids[1 + shift :], reduction="sum")
                    sums[head] = sums.get(head, 0.0) + nll
                    counts[head] = counts.get(head, 0) + rows
                    weights[head] = weight
        return sum(weights[h] * sums[h] / counts[h] for h in sums)


def shapes(c):
    """Names and shapes of the tensors of a config."""
    d, v, f = c["hidden_size"], c["vocab_size"], c["intermediate_size"]
    dim = c.get("head_dim") or d // c["num_attention_heads"]
    q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    layers = c["num_hidden_layers"]
    owners = c.get("shared_layers") or list(range(layers))
    depths = c.get("num_nextn_predict_layers", 0)
    out = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,)}
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = (v, d)
    for i in sorted(set(owners)) + list(range(layers, layers + depths)):
        p = f"model.layers.{i}."
        out |= {p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,),
                p + "self_attn.q_proj.weight": (q, d), p + "self_attn.k_proj.weight": (kv, d),
                p + "self_attn.v_proj.weight": (kv, d), p + "self_attn.o_proj.weight": (d, q),
                p + "mlp.gate_proj.weight": (f, d), p + "mlp.up_proj.weight": (f, d),
                p + "mlp.down_proj.weight": (d, f)}
        if c["model_type"] == "qwen3":
            out |= {p + "self_attn.q_norm.weight": (dim,), p + "self_attn.k_norm.weight": (dim,)}
        if i >= layers:
            out |= {p + "enorm.weight": (d,), p + "hnorm.weight": (d,),
                    p + "eh_proj.weight": (d, 2 * d), p + "shared_head.norm.weight": (d,)}
    for i in range(layers):
        p = f"model.layers.{i}."
        if "attention_residuals" in c:
            reads = [p + "self_attention_res", p + "mlp_res"]
            if i == 0 and c["attention_residuals"].get("output", "attend") == "attend":
                reads.append("model.output_attn_res")
            for name in reads:
                out[name + "_proj.weight"] = (1, d)
                if c["attention_residuals"].get("key_norm_weight"):
                    out[name + "_norm.weight"] = (d,)
        if "hyper_connections" in c:
            n = c["hyper_connections"]["streams"]
            for name in (p + "attention_streams", p + "mlp_streams"):
                out[name + ".base"] = (n, n + 2)
                if c["hyper_connections"]["mode"] == "dynamic":
                    out |= {name + ".mix": (n + 2, d), name + ".norm.weight": (d,),
                            name + ".scale": (2,)}
        if "per_layer_embeddings" in c:
            w, name = c["per_layer_embeddings"]["width"], p + "per_layer_"
            out |= {name + "embedding.weight": (v, w), name + "projection.weight": (w, d),
                    name + "projection_norm.weight": (w,), name + "gate.weight": (w, d),
                    name + "up.weight": (d, w), name + "norm.weight": (d,)}
        if i in c.get("early_exits", {}).get("layers", []):
            out[p + "exit_norm.weight"] = (d,)
            if c["early_exits"].get("head") == "own":
                out[p + "exit_head.weight"] = (v, d)
    return out
