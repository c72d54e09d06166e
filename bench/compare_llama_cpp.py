#!/usr/bin/env python3
"""Penstock beside llama.cpp on this machine: prefill, decode of one sequence, decode of a batch.

    python3 bench/compare_llama_cpp.py --penstock build/release/penstock \\
        --model SmolLM2-135M-Instruct.Q8_0.gguf --model random-1.1b/Q8_0.gguf \\
        --threads 1,2 --sequences 1,16,32 --repeat 5 --json compare.json

Needs llama-cpp-python, built on this machine (CMAKE_ARGS=-DGGML_NATIVE=ON pip install
llama-cpp-python --no-binary llama-cpp-python), and numpy. tools/make_random_llama.py makes the 1.1B
model, tools/requantize_gguf.py the Q8_0 file of SmolLM2.

Per model, thread count and number of sequences, both engines run the same work by turns, --repeat
times each (after one warm-up of each), the order alternating; the table gives medians and the
spread (smallest to largest). Work: a prompt of --prompt-tokens (with more than one sequence
--batch-prompt-tokens each), then --generate tokens per sequence. Only llama_decode is timed of
llama.cpp (its tokens are fixed, nothing is sampled); Penstock's figures are those of its `bench`
verb, which samples greedily. With --pipeline, Penstock alone also runs one stage of one thread with
16 sequences, and two stages of one thread with 32 and with 16 (2 groups).
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))


class LlamaCpp:
    """llama.cpp with the model loaded once; idle between runs."""

    def __init__(self, model: str, threads: int, sequences: int, context: int):
        import llama_cpp_api
        self.sequences = sequences
        self.model = llama_cpp_api.Model(model, threads, context, sequences)

    def run(self, prompt: int, generate: int) -> dict:
        """Tokens per second of prefill and of decode, all sequences together."""
        model, n = self.model, self.sequences
        model.clear()
        token = lambda i: 100 + (i * 7919) % (model.vocabulary - 200)  # noqa: E731
        prefill = sum(model.decode([(token(s * prompt + i), i, s, i == prompt - 1)
                                    for i in range(prompt)]) for s in range(n))
        decode = sum(model.decode([(token(s + t), prompt + t, s, True) for s in range(n)])
                     for t in range(generate))
        return {"prefill": n * prompt / prefill, "decode": n * generate / decode}

    def close(self) -> None:
        self.model.close()


class Penstock:
    """`penstock bench`, one process per run."""

    def __init__(self, arguments: argparse.Namespace, model: str, threads: int, sequences: int,
                 stages: int = 1, groups: int = 1):
        self.command = [arguments.penstock, "bench", "-m", model, "--json", "--repeat", "1",
                        "--threads", str(threads), "--sequences", str(sequences),
                        "--stages", str(stages), "--groups", str(groups)]
        if arguments.weights != "auto":
            self.command += ["--weights", arguments.weights]

    def run(self, prompt: int, generate: int) -> dict:
        command = self.command + ["--prompt-tokens", str(prompt), "--generate", str(generate)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}")
        run = json.loads(done.stdout)["runs"][0]
        return {"prefill": run["prefill"]["tokens_per_s"], "decode": run["decode"]["tokens_per_s"],
                "planned": run.get("planned"), "bubble_ratio": run.get("bubble_ratio")}

    def close(self) -> None:
        pass


def summary(samples: list[float]) -> dict:
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples),
            "samples": samples}


def by_turns(engines: dict, prompt: int, generate: int, repeat: int) -> dict:
    """Runs the engines alternately; per engine the summaries of both phases."""
    for engine in engines.values():
        engine.run(min(prompt, 64), 2)
    found = {name: {"prefill": [], "decode": []} for name in engines}
    for turn in range(repeat):
        order = list(engines) if turn % 2 == 0 else list(engines)[::-1]
        for name in order:
            result = engines[name].run(prompt, generate)
            for phase in ("prefill", "decode"):
                found[name][phase].append(result[phase])
            print(f"  {name} {turn + 1}/{repeat}: prefill {result['prefill']:.1f}, decode "
                  f"{result['decode']:.1f} tokens/s", file=sys.stderr)
    return {name: {phase: summary(s) for phase, s in phases.items()}
            for name, phases in found.items()}


def machine() -> dict:
    info = pathlib.Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    flags = fields.get("flags", "").split()
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16")
    return {"cpu": fields.get("model name", platform.processor()), "cores": os.cpu_count(),
            "flags": [f for f in wanted if f in flags], "load": os.getloadavg()[0]}


def cell(s: dict | None) -> str:
    if s is None:
        return "-"
    return f"{s['median']:.1f} ({s['min']:.1f}-{s['max']:.1f})"


def compare(a: argparse.Namespace) -> list[dict]:
    """One entry per model, thread count and number of sequences."""
    rows = []
    for model in a.model:
        for threads in a.threads:
            for sequences in a.sequences:
                prompt = a.prompt_tokens if sequences == 1 else a.batch_prompt_tokens
                context = -(-(prompt + a.generate + 8) // 256) * 256
                print(f"{model}: {threads} threads, {sequences} sequences", file=sys.stderr)
                engines = {}
                if a.penstock:
                    engines["penstock"] = Penstock(a, model, threads, sequences)
                if not a.no_llama_cpp:
                    engines["llama_cpp"] = LlamaCpp(model, threads, sequences, context)
                found = by_turns(engines, prompt, a.generate, a.repeat)
                for engine in engines.values():
                    engine.close()
                rows.append({"model": model, "threads": threads, "sequences": sequences,
                             "prompt_tokens": prompt, "generate": a.generate, **found})
    return rows


def pipeline(a: argparse.Namespace) -> list[dict]:
    """One stage against two, one thread each."""
    rows = []
    for model in a.model:
        shapes = {"1 stage, 16 sequences": (16, 1, 1), "2 stages, 2 x 16 sequences": (32, 2, 2),
                  "2 stages, 2 x 8 sequences": (16, 2, 2)}
        engines = {name: Penstock(a, model, 1, *shape) for name, shape in shapes.items()}
        found = by_turns(engines, a.batch_prompt_tokens, a.generate, a.repeat)
        rows.append({"model": model, "shapes": found})
    return rows


def print_tables(rows: list[dict], pipelines: list[dict]) -> None:
    print("| model | threads | sequences | phase | penstock tokens/s | llama.cpp tokens/s | ratio |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        for phase in ("prefill", "decode"):
            ours = row.get("penstock", {}).get(phase)
            theirs = row.get("llama_cpp", {}).get(phase)
            ratio = f"{ours['median'] / theirs['median']:.2f}" if ours and theirs else "-"
            what = f"prefill {row['prompt_tokens']}" if phase == "prefill" else (
                f"decode {row['generate']}")
            print(f"| {pathlib.Path(row['model']).name} | {row['threads']} | {row['sequences']} | "
                  f"{what} | {cell(ours)} | {cell(theirs)} | {ratio} |")
    for row in pipelines:
        print(f"\n{pathlib.Path(row['model']).name}, one thread per stage, decode:")
        base = row["shapes"]["1 stage, 16 sequences"]["decode"]["median"]
        for name, phases in row["shapes"].items():
            print(f"  {name}: {cell(phases['decode'])} tokens/s, "
                  f"{phases['decode']['median'] / base:.2f}x")


def numbers(text: str) -> list[int]:
    return [int(x) for x in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default="", help="the binary (without it: llama.cpp alone)")
    parser.add_argument("--no-llama-cpp", action="store_true")
    parser.add_argument("--model", action="append", required=True, help="GGUF file; repeatable")
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--sequences", type=numbers, default=[1, 16, 32])
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--batch-prompt-tokens", type=int, default=32)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--weights", default="int8", help="Penstock's --weights (default int8)")
    parser.add_argument("--pipeline", action="store_true")
    parser.add_argument("--json", type=pathlib.Path, help="also write all samples here")
    a = parser.parse_args()
    start = time.strftime("%Y-%m-%d %H:%M")
    rows = compare(a)
    pipelines = pipeline(a) if a.pipeline and a.penstock else []
    print_tables(rows, pipelines)
    out = {"date": start, "machine": machine(), "command": sys.argv, "weights": a.weights,
           "rows": rows, "pipelines": pipelines}
    if not a.no_llama_cpp:
        import llama_cpp_api
        out["llama_cpp"] = {"version": llama_cpp_api.version(), "info": llama_cpp_api.system_info()}
    if a.json:
        a.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
