#!/usr/bin/env python3
"""Is what is simulated what runs? Lays the step time of `penstock run --stages 2` beside `penstock sim` of the same schedule.

Each repeat decodes two groups of sequences through two stages with a trace, takes the measured times of its actions as a costs file
(`penstock trace costs`), simulates the decode ring with them, and compares the time per lap. Prints every repeat and the median difference.

  bench/run_vs_sim.py [--penstock build/release/penstock] [--model FILE.gguf] [--sequences 16] [--tokens 64] [--repeat 5]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(*command):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"run_vs_sim: {' '.join(map(str, command))[:200]}\n{result.stderr.strip()}")
    return result.stdout


def measured_lap(trace_file, groups):
    """Median time between the starts of stage 0's F of one micro-batch in successive laps, decode rows only."""
    events = json.loads(pathlib.Path(trace_file).read_text())["traceEvents"]
    starts = sorted(e["ts"] for e in events if e.get("ph") == "X" and e.get("name") == "0F0")
    laps = [b - a for a, b in zip(starts, starts[1:])]
    steady = laps[len(laps) // 4:]  # the prompt and the first laps are another kind of step
    return statistics.median(steady) * 1e-6


def one_repeat(arguments, folder, stages, groups):
    prompts = []
    for i in range(arguments.sequences):
        prompts += ["--tokens", ",".join(str(1 + (37 * i + 11 * j) % 1000) for j in range(8))]
    trace = folder / "measured.json"
    run(arguments.penstock, "run", "-m", arguments.model, *prompts, "-n", arguments.tokens, "--greedy", "--ignore-eos", "--stages", stages,
        "--groups", groups, "--threads", 1, "--trace", trace, "--json")
    costs = folder / "costs.toml"
    run(arguments.penstock, "trace", "costs", trace, "-o", costs)
    simulated = json.loads(run(arguments.penstock, "sim", "decode-ring", "-p", stages, "-m", groups, "--costs", costs, "--steps", 8, "--json"))
    return measured_lap(trace, groups), simulated["period_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=ROOT / "build/release/penstock")
    parser.add_argument("--model", default=pathlib.Path.home() / ".cache/penstock/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    differences = []
    print(f"{'repeat':>6}  {'measured lap':>14}  {'simulated':>14}  {'difference':>10}")
    with tempfile.TemporaryDirectory() as name:
        for repeat in range(arguments.repeat):
            measured, simulated = one_repeat(arguments, pathlib.Path(name), stages=2, groups=2)
            differences.append(measured / simulated - 1)
            print(f"{repeat + 1:>6}  {measured * 1e3:>11.3f} ms  {simulated * 1e3:>11.3f} ms  {differences[-1]:>+10.1%}", flush=True)
    print(f"median difference {statistics.median(differences):+.1%}")


if __name__ == "__main__":
    main()
