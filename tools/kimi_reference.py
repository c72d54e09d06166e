"""A plain reference of the DeepSeek-V3, Kimi Linear and Kimi K3 decoders in torch.

Written from the formulas (Kimi Linear, arXiv 2510.26692; DeepSeek-V2 and V3, arXiv 2405.04434 and
2412.19437; attention residuals, arXiv 2603.15031; the published configurations), with recurrences
token by token and without caches, so that it can be read beside them. Any float type; weights by
their names in a Hugging Face folder. Gradients come from torch's autograd.
"""

import math

import torch
import torch.nn.functional as F


def rms_norm(x, weight, eps):
    return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


class Model:
    """`config`: the text model's keys; `weights`: name -> tensor; `round_to`: a type that the
    inputs and results of matrix products are rounded to (None: nothing is)."""

    def __init__(self, config, weights, round_to=None):
        self.c = config
        self.w = weights
        self.round_to = round_to
        self.deepseek = config["model_type"] == "deepseek_v3"
        self.reads = {}  # of the last run: [sources, tokens] weights of each depth read

    def rounded(self, x):
        return x if self.round_to is None else x.to(self.round_to).to(x.dtype)

    def linear(self, x, name):
        return self.rounded(self.rounded(x) @ self.rounded(self.w[name + ".weight"]).T)

    # ---- activations and experts ----

    def gated(self, gate, up):
        if self.c.get("hidden_act", "silu") != "situ":
            return F.silu(gate) * up
        beta = self.c["activation_situ_beta"]
        linear = self.c.get("activation_situ_linear_beta")
        if linear:
            up = linear * torch.tanh(up / linear)
        return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * up

    def mlp(self, x, prefix, names=("gate_proj", "up_proj", "down_proj")):
        gate, up, down = (prefix + n for n in names)
        return self.linear(self.gated(self.linear(x, gate), self.linear(x, up)), down)

    def route(self, x, prefix):
        """Chosen experts [rows, k], their weights, and how clear the choice was."""
        c = self.c
        experts = c["n_routed_experts"] if self.deepseek else c["num_experts"]
        chosen = c["num_experts_per_tok"] if self.deepseek else c["num_experts_per_token"]
        groups = c.get("n_group" if self.deepseek else "num_expert_group", 1) or 1
        open_groups = c.get("topk_group", 1) or 1
        normalize = c.get("norm_topk_prob" if self.deepseek else "moe_renormalize", True)
        scores = torch.sigmoid(x @ self.w[prefix + "gate.weight"].T)
        biased = scores + self.w[prefix + "gate.e_score_correction_bias"]
        margin = float("inf")
        if groups > open_groups:
            per_group = biased.unflatten(-1, (groups, experts // groups))
            group_scores = per_group.topk(2, -1).values.sum(-1)
            best = group_scores.topk(open_groups + 1, -1).values
            margin = (best[..., -2] - best[..., -1]).min().item()
            mask = torch.zeros_like(group_scores)
            mask.scatter_(-1, group_scores.topk(open_groups, -1).indices, 1.0)
            biased = per_group.masked_fill(mask[..., None] == 0, -math.inf).flatten(-2)
        best = biased.topk(min(chosen + 1, experts), -1).values
        if chosen < experts:
            margin = min(margin, (best[..., -2] - best[..., -1]).min().item())
        ids = biased.topk(chosen, -1).indices
        weights = scores.gather(-1, ids)
        if normalize and (chosen > 1 or self.deepseek):
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        self.margin = min(self.margin, margin)
        return ids, weights * c.get("routed_scaling_factor", 1.0)

    def experts(self, x, prefix, names):
        ids, weights = self.route(x, prefix)
        latent = "routed_expert_hidden_size" in self.c and not self.deepseek
        z = self.linear(x, prefix + "routed_expert_down_proj") if latent else x
        y = torch.zeros_like(z)
        for e in range(int(ids.max()) + 1):
            row, slot = torch.where(ids == e)
            if len(row):
                out = self.mlp(z[row], f"{prefix}experts.{e}.", names)
                y = y.index_add(0, row, out * weights[row, slot, None])
        if self.c.get("latent_moe_use_norm") and not self.deepseek:
            y = rms_norm(y, self.w[prefix + "routed_expert_norm.weight"], self.c["rms_norm_eps"])
        if latent:
            y = self.linear(y, prefix + "routed_expert_up_proj")
        if self.c.get("n_shared_experts" if self.deepseek else "num_shared_experts", 0):
            y = y + self.mlp(x, prefix + "shared_experts.")
        return y

    def feed_forward(self, x, i):
        c = self.c
        prefix = f"model.layers.{i}."
        if i < c.get("first_k_dense_replace", 0) or i % c.get("moe_layer_freq", 1):
            return self.mlp(x, prefix + "mlp.")
        if self.deepseek:
            return self.experts(x, prefix + "mlp.", ("gate_proj", "up_proj", "down_proj"))
        return self.experts(x, prefix + "block_sparse_moe.", ("w1", "w3", "w2"))

    # ---- attention ----

    def rotations(self, rows):
        """cos and sin [rows, rope / 2], and the magnitude squared of the scores."""
        c = self.c
        dim = c["qk_rope_head_dim"]
        base = c["rope_theta"]
        scaling = c.get("rope_scaling")
        frequencies = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        magnitude, scale = 1.0, 1.0
        if scaling:
            factor, original = scaling["factor"], scaling["original_max_position_embeddings"]

            def pair(rotations):
                return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

            low = max(math.floor(pair(scaling["beta_fast"])), 0)
            high = min(math.ceil(pair(scaling["beta_slow"])), dim - 1)
            ramp = ((torch.arange(dim // 2) - low) / max(high - low, 1e-3)).clamp(0, 1)
            frequencies = frequencies / factor * ramp + frequencies * (1 - ramp)

            def m(x):
                return 0.1 * x * math.log(factor) + 1.0

            scale = m(scaling["mscale"]) / m(scaling["mscale_all_dim"])
            magnitude = m(scaling["mscale_all_dim"]) ** 2
        angles = torch.arange(rows, dtype=torch.float64)[:, None] * frequencies
        return angles.cos() * scale, angles.sin() * scale, magnitude

    @staticmethod
    def rotate_pairs(x, cos, sin):
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    def latent_attention(self, x, i):
        c = self.c
        p = f"model.layers.{i}.self_attn."
        heads, nope, rope = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        value, latent = c["v_head_dim"], c["kv_lora_rank"]
        rows = len(x)
        if c.get("q_lora_rank"):
            q = self.linear(rms_norm(self.linear(x, p + "q_a_proj"),
                                     self.w[p + "q_a_layernorm.weight"], 1e-6), p + "q_b_proj")
        else:
            q = self.linear(x, p + "q_proj")
        q = q.unflatten(-1, (heads, nope + rope))
        both = self.linear(x, p + "kv_a_proj_with_mqa")
        r = both[:, latent:]
        kv = self.linear(rms_norm(both[:, :latent], self.w[p + "kv_a_layernorm.weight"], 1e-6),
                         p + "kv_b_proj").unflatten(-1, (heads, nope + value))
        qn, qr = q.split([nope, rope], -1)
        magnitude = 1.0
        if self.deepseek:
            cos, sin, magnitude = (t.to(x.dtype) if torch.is_tensor(t) else t
                                   for t in self.rotations(rows))
            qr = self.rotate_pairs(qr, cos[:, None], sin[:, None])
            r = self.rotate_pairs(r, cos, sin)
        scores = torch.einsum("ihd,jhd->hij", qn, kv[..., :nope])
        scores = (scores + torch.einsum("ihd,jd->hij", qr, r)) * magnitude / math.sqrt(nope + rope)
        hidden = torch.ones(rows, rows, dtype=torch.bool).triu(1)
        probabilities = scores.masked_fill(hidden, -math.inf).softmax(-1)
        o = torch.einsum("hij,jhd->ihd", probabilities, kv[..., nope:]).flatten(1)
        if c.get("mla_use_output_gate"):
            o = o * torch.sigmoid(self.linear(x, p + "g_proj"))
        return self.linear(o, p + "o_proj")

    def delta_attention(self, x, i):
        c = self.c["linear_attn_config"]
        p = f"model.layers.{i}.self_attn."
        heads, dim, taps = c["num_heads"], c["head_dim"], c.get("short_conv_kernel_size", 4)
        rows = len(x)

        def mixed(name):
            y = F.pad(self.linear(x, f"{p}{name}_proj").T, (taps - 1, 0))
            y = F.conv1d(y[None], self.w[f"{p}{name}_conv1d.weight"], groups=heads * dim)[0].T
            return F.silu(y).unflatten(-1, (heads, dim))

        q, k, v = mixed("q"), mixed("k"), mixed("v")
        q = q / torch.sqrt((q * q).sum(-1, keepdim=True) + 1e-6) * dim ** -0.5
        k = k / torch.sqrt((k * k).sum(-1, keepdim=True) + 1e-6)
        z = self.linear(self.linear(x, p + "f_a_proj"), p + "f_b_proj") + self.w[p + "dt_bias"]
        z = z.unflatten(-1, (heads, dim))
        a = self.w[p + "A_log"].flatten()[:heads].exp()[:, None]
        bound = c.get("gate_lower_bound")
        decay = -a * F.softplus(z, threshold=1e9) if bound is None else bound * torch.sigmoid(a * z)
        beta = torch.sigmoid(self.linear(x, p + "b_proj"))
        state = torch.zeros(heads, dim, dim, dtype=x.dtype)
        out = []
        for t in range(rows):
            state = state * decay[t].exp()[..., None]
            error = v[t] - torch.einsum("hkv,hk->hv", state, k[t])
            state = state + beta[t][:, None, None] * k[t][..., None] * error[:, None]
            out.append(torch.einsum("hkv,hk->hv", state, q[t]))
        o = rms_norm(torch.stack(out), self.w[p + "o_norm.weight"], self.c["rms_norm_eps"])
        if c.get("use_full_rank_gate"):
            gate = self.linear(x, p + "g_proj")
        else:
            gate = self.linear(self.linear(x, p + "g_a_proj"), p + "g_b_proj")
        o = o.flatten(1) * torch.sigmoid(gate)
        return self.linear(o, p + "o_proj")

    def attention(self, x, i):
        if not self.deepseek and i + 1 in self.c["linear_attn_config"]["kda_layers"]:
            return self.delta_attention(x, i)
        return self.latent_attention(x, i)

    # ---- the model ----

    def depth_read(self, name, bank, p):
        if not bank:
            return p
        eps = self.c["rms_norm_eps"]
        query = (self.w[name + "_proj.weight"] * self.w[name + "_norm.weight"]).flatten()
        sources = torch.stack([*bank, p])
        scores = (sources * query).sum(-1) / torch.sqrt((sources * sources).mean(-1) + eps)
        weights = scores.softmax(0)
        self.reads[name] = weights
        return (weights[..., None] * sources).sum(0)

    def logits(self, ids):
        """[tokens, vocabulary] of one sequence from position 0."""
        c, w = self.c, self.w
        eps = c["rms_norm_eps"]
        block = c.get("attn_res_block_size") or 0
        self.margin = math.inf
        p, bank = w["model.embed_tokens.weight"][ids], []
        for i in range(c["num_hidden_layers"]):
            prefix = f"model.layers.{i}."
            h = self.depth_read(prefix + "self_attention_res", bank, p)
            opens = block > 0 and i % block == 0
            if opens:
                bank = [*bank, p]
            y = self.attention(rms_norm(h, w[prefix + "input_layernorm.weight"], eps), i)
            p = y if opens else p + y
            h = self.depth_read(prefix + "mlp_res", bank, p)
            norm = w[prefix + "post_attention_layernorm.weight"]
            p = p + self.feed_forward(rms_norm(h, norm, eps), i)
        h = self.depth_read("model.output_attn_res", bank, p)
        return self.linear(rms_norm(h, w["model.norm.weight"], eps), "lm_head")
