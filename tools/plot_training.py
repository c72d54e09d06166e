#!/usr/bin/env python3
"""Pictures of training runs as SVG, from logs and traces of `penstock train`.

    tools/plot_training.py loss NAME=LOG.jsonl ... -o FILE.svg
        Loss over steps, one line per run; lines that lie exactly on each other are drawn with growing width, so that each shows.
    tools/plot_training.py memory NAME=PLANNED.json,MEASURED.json ... -o FILE.svg
        Activations held by each rank over one step, planned (dashed) and measured (solid).
    tools/plot_training.py timelines PLANNED.json MEASURED.json -o FILE.svg
        The ranks of one simulated step over those of the last measured step, on one scale.

Only Python's standard library is used."""
import json
import pathlib
import re
import sys
import xml.sax.saxutils

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f"]
KINDS = {"F": "#56b4e9", "B": "#e69f00", "I": "#e69f00", "W": "#009e73", "R": "#cc79a7", "OPT": "#555555"}
STYLE = ("<style>svg{background:#fff;color:#222}text{font:12px sans-serif;fill:currentColor}.t{font-size:14px;font-weight:600}"
         ".g{stroke:currentColor;stroke-opacity:.15}.a{stroke:currentColor;stroke-opacity:.6}"
         "@media(prefers-color-scheme:dark){svg{background:#161616;color:#ddd}}</style>")


def esc(text):
    return xml.sax.saxutils.escape(str(text))


class Picture:
    def __init__(self, width, height):
        self.width, self.height, self.parts = width, height, []

    def add(self, part):
        self.parts.append(part)

    def text(self, x, y, text, anchor="start", cls=""):
        self.add(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{cls}">{esc(text)}</text>')

    def line(self, x0, y0, x1, y1, cls="g"):
        self.add(f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" class="{cls}"/>')

    def path(self, points, colour, width, dash="", opacity=1.0):
        d = "M" + "L".join(f"{x:.2f},{y:.2f}" for x, y in points)
        self.add(f'<path d="{d}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-opacity="{opacity}"'
                 + (f' stroke-dasharray="{dash}"' if dash else "") + ' stroke-linejoin="round"/>')

    def write(self, path):
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
                f'viewBox="0 0 {self.width} {self.height}">')
        pathlib.Path(path).write_text(head + STYLE + "\n".join(self.parts) + "</svg>\n")


def ticks(low, high, count=5):
    """Round numbers inside [low, high]."""
    span = max(high - low, 1e-12)
    unit = 10 ** len(str(int(span / count))) if span / count >= 1 else 1.0
    while unit > span / count:
        unit /= 10
    step = next(unit * k for k in (1, 2, 5, 10, 20) if span / (unit * k) <= count)
    first = int(low / step) + (low > 0 and low % step > 0)
    return [k * step for k in range(first, int(high / step) + 1)]


class Axes:
    """A box in a picture with linear scales."""

    def __init__(self, picture, box, xs, ys, x_name, y_name, fmt=lambda v: f"{v:g}"):
        self.p, (self.x0, self.y0, self.x1, self.y1), self.xs, self.ys = picture, box, xs, ys
        for v in ticks(*xs):
            picture.line(self.x(v), self.y0, self.x(v), self.y1)
            picture.text(self.x(v), self.y1 + 16, f"{v:g}", "middle")
        for v in ticks(*ys):
            picture.line(self.x0, self.y(v), self.x1, self.y(v))
            picture.text(self.x0 - 6, self.y(v) + 4, fmt(v), "end")
        picture.line(self.x0, self.y1, self.x1, self.y1, "a")
        picture.line(self.x0, self.y0, self.x0, self.y1, "a")
        picture.text((self.x0 + self.x1) / 2, self.y1 + 34, x_name, "middle")
        picture.text(self.x0, self.y0 - 8, y_name)

    def x(self, v):
        return self.x0 + (v - self.xs[0]) / (self.xs[1] - self.xs[0]) * (self.x1 - self.x0)

    def y(self, v):
        return self.y1 - (v - self.ys[0]) / (self.ys[1] - self.ys[0]) * (self.y1 - self.y0)


def named(arguments):
    return [a.split("=", 1) if "=" in a else (pathlib.Path(a).stem, a) for a in arguments]


def plot_loss(arguments, out):
    runs = []
    for name, path in named(arguments):
        lines = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
        runs.append((name, [(l["step"], l["loss"]) for l in lines], [l for l in lines if "weights_sha256" in l]))
    steps = max(p[0] for _, points, _ in runs for p in points)
    low, high = (f(p[1] for _, points, _ in runs for p in points) for f in (min, max))
    picture = Picture(760, 420)
    axes = Axes(picture, (60, 50, 560, 370), (0, steps), (low - 0.05 * (high - low), high + 0.02 * (high - low)), "step", "loss")
    same = all(points == runs[0][1] for _, points, _ in runs)
    digests = {l["weights_sha256"] for _, _, last in runs for l in last}
    picture.text(60, 22, (f"{len(runs)} schedules, the same loss in every step" if same else "Loss over steps")
                 + (f", weights {next(iter(digests))[:12]}…" if len(digests) == 1 else ""), cls="t")
    for i, (name, points, _) in enumerate(runs):
        width = 2 + 3 * (len(runs) - 1 - i) * same
        picture.path([(axes.x(s), axes.y(v)) for s, v in points], COLOURS[i % len(COLOURS)], width, opacity=0.9)
        y = 70 + 22 * i
        picture.add(f'<line x1="580" y1="{y - 4}" x2="610" y2="{y - 4}" stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="{width}"/>')
        picture.text(618, y, name)
    picture.write(out)
    return 0 if same else 1


NAME = re.compile(r"^(\d+)?(F|B|I|W|R|OPT)(\d+)?(?:\.\d+)?$")


def read_trace(path):
    """{rank: ([(start, end, name)], [(at, bytes)])} in seconds; of a measured run the step of median length alone."""
    events = json.loads(pathlib.Path(path).read_text())["traceEvents"]
    ranks = {}
    for e in events:
        rank = ranks.setdefault(e.get("tid", 0), ([], []))
        if e.get("ph") == "X" and NAME.match(e["name"]):
            rank[0].append((e["ts"] / 1e6, (e["ts"] + e.get("dur", 0)) / 1e6, e["name"], e.get("args", {}).get("step", 0)))
        elif e.get("ph") == "C" and "activations" in e["name"]:
            value = next(iter(e["args"].values()))
            key = int(m[1]) if (m := re.search(r"(\d+)", e["name"])) else e.get("tid", 0)
            ranks.setdefault(key, ([], []))[1].append((e["ts"] / 1e6, value))
    ranks = {r: v for r, v in ranks.items() if v[0]}
    windows = {}
    for slices, _ in ranks.values():
        for a, b, _, step in slices:
            first, last = windows.get(step, (a, b))
            windows[step] = (min(a, first), max(b, last))
    shown = sorted(windows, key=lambda s: windows[s][1] - windows[s][0])[(len(windows) - 1) // 2]
    begin, end = windows[shown]
    result = {}
    for r, (slices, samples) in sorted(ranks.items()):
        mine = [(a - begin, b - begin, n) for a, b, n, step in slices if step == shown]
        result[r] = (mine, [(t - begin, v) for t, v in sorted(samples) if begin <= t <= end])
    return result


def staircase(samples, end):
    points = [(0, 0)]
    for at, value in samples:
        points += [(at, points[-1][1]), (at, value)]
    return points + [(max(end, points[-1][0]), points[-1][1])]


def plot_memory(arguments, out):
    runs = [(name, [read_trace(p) for p in paths.split(",")]) for name, paths in named(arguments)]
    top = max(v for _, traces in runs for t in traces for _, samples in t.values() for _, v in samples) / 1e6
    ranks = max(len(t) for _, traces in runs for t in traces)
    picture = Picture(60 + 330 * len(runs), 350 + 16 * ranks)
    for i, (name, (planned, measured)) in enumerate(runs):
        x0 = 60 + 330 * i
        end = max(s[1] for t in (planned, measured) for slices, _ in t.values() for s in slices)
        axes = Axes(picture, (x0, 60, x0 + 270, 290), (0, end * 1e3), (0, top * 1.05), "ms", f"{name}, MB")
        for trace, dash, width in ((measured, "", 2), (planned, "6 4", 2)):
            for r, (slices, samples) in trace.items():
                points = staircase(samples, max(s[1] for s in slices))
                picture.path([(axes.x(t * 1e3), axes.y(v / 1e6)) for t, v in points], COLOURS[r % len(COLOURS)], width, dash)
        for k, r in enumerate(planned):
            planned_peak, measured_peak = (max(v for _, v in t[r][1]) / 1e6 for t in (planned, measured))
            picture.text(x0, 345 + 16 * k, f"rank {r}: peak planned {planned_peak:.2f} MB, measured {measured_peak:.2f} MB")
    picture.text(60, 20, "Activations held; dashed: planned, solid: measured; one colour per rank", cls="t")
    picture.write(out)
    return 0


def plot_timelines(arguments, out):
    traces = [("planned", read_trace(arguments[0])), ("measured", read_trace(arguments[1]))]
    end = max(s[1] for _, t in traces for slices, _ in t.values() for s in slices)
    rows = sum(len(t) for _, t in traces)
    picture = Picture(1000, 80 + 34 * rows + 50)
    y = 40
    for title, trace in traces:
        span = max(s[1] for slices, _ in trace.values() for s in slices)
        picture.text(10, y, f"{title}: {span * 1e3:.1f} ms", cls="t")
        y += 10
        for r, (slices, _) in trace.items():
            picture.text(10, y + 18, f"rank {r}")
            for a, b, name in slices:
                x0, x1 = 70 + a / end * 910, 70 + b / end * 910
                kind = NAME.match(name)[2]
                picture.add(f'<rect x="{x0:.2f}" y="{y}" width="{max(x1 - x0, .4):.2f}" height="26" fill="{KINDS[kind]}" stroke="#fff" '
                            f'stroke-width=".5"><title>{esc(name)} {1e3 * (b - a):.2f} ms</title></rect>')
                if x1 - x0 > 16:
                    picture.add(f'<text x="{(x0 + x1) / 2:.1f}" y="{y + 17}" text-anchor="middle" style="font-size:10px;fill:#000">'
                                f'{esc(NAME.match(name)[3] or "")}</text>')
            y += 34
        y += 22
    x = 70
    for kind, colour in (("F", KINDS["F"]), ("I or B", KINDS["I"]), ("W", KINDS["W"]), ("optimizer", KINDS["OPT"])):
        picture.add(f'<rect x="{x}" y="{y - 12}" width="14" height="14" fill="{colour}"/>')
        picture.text(x + 20, y, kind)
        x += 110
    picture.write(out)
    return 0


def main():
    words = sys.argv[1:]
    if len(words) < 4 or "-o" not in words:
        sys.exit(__doc__)
    at = words.index("-o")
    out, rest = words[at + 1], words[1:at] + words[at + 2:]
    return {"loss": plot_loss, "memory": plot_memory, "timelines": plot_timelines}[words[0]](rest, out)


if __name__ == "__main__":
    sys.exit(main())
