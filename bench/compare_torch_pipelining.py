#!/usr/bin/env python3
"""Training with `penstock train` beside PyTorch's pipeline parallelism on this machine.

    python3 bench/compare_torch_pipelining.py --penstock build/release/penstock \\
        --rates build/bench/bench/penstock_training_bench --model 135m --repeat 2

Both cut the same Llama into 2 stages, one process of one thread each, and run the same schedule
(1F1B) on the same micro-batches (--micro-batches of --tokens tokens, one sequence each), with the
norm clipped to 1 and AdamW. PyTorch: torch.distributed.pipelining over gloo, a Llama written with
scaled_dot_product_attention and rms_norm, fused AdamW, memory that the allocator keeps, in float32
and with bf16 autocast. Penstock: random weights from a config.json, `train.dtype` f32 and bf16,
over MPI (--transport threads: ranks as threads of one process).

Models: 135m is SmolLM2-135M (tied embedding, whose gradients are reduced between the stages on both
sides), 350m has 20 layers of width 1024 and its own head. Engines run by turns, --repeat turns
each; one turn is --steps optimizer steps after those that warm up (Penstock's calibrating steps, one
step of PyTorch per number type). The table has the median over all steps and the spread. `better`
compares the faster type of each side.

--rates: penstock_training_bench gives the rate of every matrix product on one core; the share is
the time that the step's products would take at those rates on two cores, over the step's time.

Needs torch, and mpirun for Penstock. Text for Penstock comes from --text, tokenized by --tokenizer.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

CACHE = pathlib.Path.home() / ".cache/penstock/models"
MODELS = {
    "135m": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
             "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
             "vocab_size": 49152, "tie_word_embeddings": True, "cut": 18},
    "350m": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 20,
             "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64,
             "vocab_size": 49152, "tie_word_embeddings": False, "cut": 12},
}
STAGES = 2
RATE_ROWS = 512  # of the benchmark


def matrices(m: dict) -> dict[str, tuple[int, int, int]]:
    """Name in penstock_training_bench -> outputs, inputs, how many of them."""
    width, ffn, head = m["hidden_size"], m["intermediate_size"], m["head_dim"]
    heads, kv = m["num_attention_heads"], m["num_key_value_heads"]
    layers = m["num_hidden_layers"]
    return {"qkv": ((heads + 2 * kv) * head, width, layers), "o": (width, heads * head, layers),
            "gate_up": (2 * ffn, width, layers), "down": (width, ffn, layers),
            "head": (m["vocab_size"], width, 1)}


def parameters(m: dict) -> int:
    count = sum(o * i * n for o, i, n in matrices(m).values())
    count += m["hidden_size"] * (2 * m["num_hidden_layers"] + 1)
    return count + (0 if m["tie_word_embeddings"] else m["vocab_size"] * m["hidden_size"])


# ---- PyTorch: a worker process per stage, driven over its standard input ----


def stage_module(m: dict, rank: int, seed: int):
    import torch
    import torch.nn.functional as nnf
    from torch import nn

    width, head = m["hidden_size"], m["head_dim"]
    heads, kv = m["num_attention_heads"], m["num_key_value_heads"]
    torch.manual_seed(seed)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1 = nn.Parameter(torch.ones(width))
            self.norm2 = nn.Parameter(torch.ones(width))
            self.qkv = nn.Linear(width, (heads + 2 * kv) * head, bias=False)
            self.o = nn.Linear(heads * head, width, bias=False)
            self.gate_up = nn.Linear(width, 2 * m["intermediate_size"], bias=False)
            self.down = nn.Linear(m["intermediate_size"], width, bias=False)

        @staticmethod
        def turn(x, cos, sin):
            a, b = x.chunk(2, dim=-1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

        def forward(self, x, cos, sin):
            batch, rows, _ = x.shape
            y = self.qkv(nnf.rms_norm(x, (width,), self.norm1, 1e-5))
            q, k, v = y.view(batch, rows, heads + 2 * kv, head).transpose(1, 2).split(
                (heads, kv, kv), dim=1)
            q, k = self.turn(q, cos, sin).to(v.dtype), self.turn(k, cos, sin).to(v.dtype)
            a = nnf.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv)
            x = x + self.o(a.transpose(1, 2).reshape(batch, rows, heads * head))
            gate, up = self.gate_up(nnf.rms_norm(x, (width,), self.norm2, 1e-5)).chunk(2, dim=-1)
            return x + self.down(nnf.silu(gate) * up)

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            layers = m["cut"] if rank == 0 else m["num_hidden_layers"] - m["cut"]
            self.embed = nn.Embedding(m["vocab_size"], width) if rank == 0 else None
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.last = nn.Parameter(torch.ones(width)) if rank else None
            self.head = nn.Linear(width, m["vocab_size"], bias=False) if rank else None
            self.bf16 = False
            angles = torch.outer(torch.arange(4096.0),
                                 10000.0 ** (-torch.arange(0, head, 2) / head))
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                if self.embed is not None:
                    x = self.embed(x)
                rows = x.shape[1]
                for layer in self.layers:
                    x = layer(x, self.cos[:rows], self.sin[:rows])
                if self.head is not None:
                    x = self.head(nnf.rms_norm(x, (width,), self.last, 1e-5))
            return x

    module = Stage()
    for p in module.parameters():
        if p.dim() == 2:
            nn.init.normal_(p, std=0.02)
    return module


def worker(a: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as nnf
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.set_num_threads(1)
    m = MODELS[a.model]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{a.port}", rank=a.worker,
                            world_size=STAGES)
    module = stage_module(m, a.worker, 1)
    tied = None
    if m["tie_word_embeddings"]:
        tied = module.embed.weight if a.worker == 0 else module.head.weight
        dist.broadcast(tied.data, 0)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, betas=(0.9, 0.95),
                                  weight_decay=0.1, fused=True)
    generator = torch.Generator().manual_seed(2)

    def schedule(micro_batches):
        stage = PipelineStage(module, a.worker, STAGES, torch.device("cpu"))
        return Schedule1F1B(stage, micro_batches, loss_fn=lambda y, t: nnf.cross_entropy(
            y.flatten(0, 1).float(), t.flatten()))

    def step(plan, micro_batches):
        ids = torch.randint(0, m["vocab_size"], (micro_batches, a.tokens + 1), generator=generator)
        dist.barrier()
        start = time.monotonic()
        losses = []
        if a.worker == 0:
            plan.step(ids[:, :-1].contiguous())
        else:
            plan.step(target=ids[:, 1:].contiguous(), losses=losses)
        if tied is not None:
            dist.all_reduce(tied.grad)
        total = sum((p.grad.double().square().sum() if p.dim() < 2 else
                     torch.linalg.vector_norm(p.grad).double().square()
                     for p in module.parameters() if p is not tied or a.worker == 0),
                    torch.zeros((), dtype=torch.float64))
        dist.all_reduce(total)
        factor = min(1.0, 1.0 / (float(total) ** 0.5 + 1e-6))
        if factor < 1:
            for p in module.parameters():
                p.grad.mul_(factor)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        dist.barrier()
        seconds = time.monotonic() - start
        return seconds, float(sum(losses).detach()) / len(losses) if losses else None

    for line in sys.stdin:
        kind, dtype, count = line.split()
        module.bf16 = dtype == "bf16"
        micro_batches = STAGES if kind == "warm" else a.micro_batches
        plan = schedule(micro_batches)
        found = [step(plan, micro_batches) for _ in range(int(count))]
        if a.worker == STAGES - 1:
            print(json.dumps({"seconds": [s for s, _ in found], "loss": found[-1][1]}), flush=True)
    dist.destroy_process_group()


class Torch:
    """Both stages; between turns they are idle, or gone with --restart."""

    def __init__(self, a: argparse.Namespace, types: list[str]):
        self.a, self.types, self.workers = a, types, []
        if not a.restart:
            self.start()

    def start(self) -> None:
        a = self.a
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        # Without the limits glibc gives large tensors back to the system after each use, and takes
        # them again page by page: a tenth of the step.
        environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1",
                           MALLOC_MMAP_THRESHOLD_=str(1 << 33), MALLOC_TRIM_THRESHOLD_=str(1 << 33),
                           MALLOC_TOP_PAD_=str(1 << 28))
        self.workers = [subprocess.Popen(
            [sys.executable, __file__, "--worker", str(r), "--port", str(port), "--model", a.model,
             "--tokens", str(a.tokens), "--micro-batches", str(a.micro_batches)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
            for r in range(STAGES)]
        for dtype in self.types:
            self.send("warm", dtype, 1)

    def ask(self, dtype: str, steps: int) -> list[float]:
        if not self.workers:
            self.start()
        found = self.send("step", dtype, steps)
        if self.a.restart:
            self.close()
        return found

    def send(self, kind: str, dtype: str, steps: int) -> list[float]:
        for w in self.workers:
            w.stdin.write(f"{kind} {dtype} {steps}\n")
            w.stdin.flush()
        answer = self.workers[-1].stdout.readline()
        if not answer:
            raise SystemExit("a PyTorch process ended")
        return json.loads(answer)["seconds"]

    def close(self) -> None:
        for w in self.workers:
            w.stdin.close()
        for w in self.workers:
            w.wait()
        self.workers = []


# ---- Penstock: one run per turn ----


class Penstock:
    def __init__(self, a: argparse.Namespace, folder: pathlib.Path):
        self.a, self.folder = a, folder
        m = dict(MODELS[a.model])
        self.cut = m.pop("cut")
        (folder / "config.json").write_text(json.dumps(m | {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "initializer_range": 0.02}))
        self.report: dict = {}

    def ask(self, dtype: str, steps: int) -> list[float]:
        a = self.a
        config = self.folder / "train.toml"
        config.write_text(f"""[model]
config = "{self.folder}/config.json"
[data]
path = "{a.text}"
tokenizer = "{a.tokenizer}"
sequence_tokens = {a.tokens}
[pipeline]
stages = {STAGES}
schedule = "{a.schedule}"
micro_batches = {a.micro_batches}
micro_batch = 1
[optimizer]
lr = 1e-4
[train]
steps = {steps}
dtype = "{dtype}"
""")
        log = self.folder / "log.jsonl"
        command = [a.penstock, "train", str(config), "--json", "--log", str(log), "--threads", "1"]
        if a.transport == "mpi":
            command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                       "-n", str(STAGES)] + command
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}")
        self.report[dtype] = json.loads(done.stdout)
        return [json.loads(line)["step_s"] for line in log.read_text().splitlines()]


def product_seconds(a: argparse.Namespace, dtype: str) -> float:
    """Time of one step's matrix products on one core, at the rates that the benchmark measures."""
    out = subprocess.run([a.rates, f"--benchmark_filter=train/{a.model}/{dtype}/(layer|head)/1$",
                          "--benchmark_format=json", "--benchmark_min_time=0.5"],
                         capture_output=True, text=True, check=True)
    m, total = MODELS[a.model], 0.0
    for b in json.loads(out.stdout)["benchmarks"]:
        shares = sum(share for name, share in b.items() if name.startswith(tuple(matrices(m)))
                     and name.endswith(("_forward", "_input", "_weight")))
        count = m["num_hidden_layers"] if "/layer/" in b["name"] else 1
        total += count * shares / 100 * b["cpu_time"] * 1e-6
    return total * a.tokens * a.micro_batches / RATE_ROWS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default="", help="the binary (without it: PyTorch alone)")
    parser.add_argument("--rates", default="", help="penstock_training_bench, for the share")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--model", choices=MODELS, default="135m")
    parser.add_argument("--types", default="f32,bf16")
    parser.add_argument("--schedule", default="1f1b", help="Penstock's; PyTorch's is 1F1B")
    parser.add_argument("--transport", choices=("mpi", "threads"), default="mpi")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--steps", type=int, default=1, help="measured steps of a turn")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--restart", action="store_true",
                        help="PyTorch's processes end with their turn: where memory is short")
    parser.add_argument("--text", default="/usr/share/common-licenses")
    parser.add_argument("--tokenizer", default=str(CACHE / "SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--json", type=pathlib.Path, help="also write all samples here")
    parser.add_argument("--worker", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.worker >= 0:
        worker(a)
        return
    types = a.types.split(",")
    tokens = a.tokens * a.micro_batches
    seconds: dict[tuple[str, str], list[float]] = {}
    report = {}
    with tempfile.TemporaryDirectory() as folder:
        engines = {}
        if a.penstock:
            engines["penstock"] = Penstock(a, pathlib.Path(folder))
        if not a.no_torch:
            engines["torch"] = Torch(a, types)
        for turn in range(a.repeat):
            for name in list(engines) if turn % 2 == 0 else list(engines)[::-1]:
                for dtype in types:
                    found = engines[name].ask(dtype, a.steps)
                    seconds.setdefault((name, dtype), []).extend(found)
                    print(f"  {name} {dtype} {turn + 1}/{a.repeat}: "
                          + ", ".join(f"{s:.2f} s" for s in found), file=sys.stderr)
        if "torch" in engines:
            engines["torch"].close()
        if a.penstock:
            report = engines["penstock"].report
    print(f"{a.model}: {parameters(MODELS[a.model]) / 1e6:.1f} M parameters, {a.micro_batches} x "
          f"{a.tokens} tokens a step, {STAGES} stages of one thread, {a.schedule}\n")
    print("| Engine | Type | tokens/s | a step | share of the product rate |")
    print("|---|---|---|---|---|")
    best: dict[str, float] = {}
    rows = []
    for (name, dtype), samples in seconds.items():
        median = statistics.median(samples)
        best[name] = max(best.get(name, 0), tokens / median)
        share = ""
        if name == "penstock" and a.rates:
            share = f"{100 * product_seconds(a, dtype) / STAGES / median:.0f} %"
        print(f"| {name} | {dtype} | {tokens / median:.0f} ({tokens / max(samples):.0f} to "
              f"{tokens / min(samples):.0f}) | {median:.2f} s | {share} |")
        rows.append({"engine": name, "type": dtype, "step_s": samples, "share": share})
    if len(best) == 2:
        print(f"\nbetter type of each: {best['penstock'] / best['torch']:.2f} x")
    if a.json:
        a.json.write_text(json.dumps({"command": sys.argv, "rows": rows, "penstock": report},
                                     indent=1))


if __name__ == "__main__":
    main()
