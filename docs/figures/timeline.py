"""A stretch of a timeline as an SVG: rows of threads and devices, spans inside spans below each other.

usage: timeline.py RUN.json OUT.svg FIRST COUNT [--from SPAN] [--to SPAN] [--title TEXT]
                   [--hide PREFIX]... [--name ROW=LABEL]...

From the start of the FIRSTth `rollout` to the end of the COUNTth `update` from there on; --from and
--to name other spans. Rows whose name begins with a PREFIX are left out. Rollouts and updates that
have a number and a version, as Sebulba's do, are joined by lines: a rollout to the update that
learns from it, an update to the rollouts that act with its parameters. Needs nothing but Python.
"""
import argparse
import html
import json
import re

WIDTH, LEFT, BAR, GAP, TOP = 960, 110, 15, 12, 34
COLORS = {
    "rollout": "#4c78a8", "update": "#f58518", "ppo_iteration": "#f58518", "env step": "#54a24b", "env recv": "#88c27f", "envs": "#54a24b",
    "execute": "#b279a2", "trace": "#e45756", "lower": "#ff9da6", "compile": "#9d755d", "to": "#bab0ac", "wait": "#d8d2cf",
    "sebulba_rollout": "#4c78a8", "sebulba": "#f58518", "send": "#9ecae9", "give": "#e0a458", "learn": "#f2a65a", "prepare": "#c9822f",
}
DARK = ("wait", "to", "send")


def color(name):
    keys = [key for key in COLORS if name.startswith(key)]
    return COLORS[keys[0]] if keys else "#72b7b2"


def is_a(name, kind):
    return name == kind or name.startswith(kind + " ")


def lines(places, scale, begin):
    """From what is made to who takes it: dashed where that is a rollout, whole where parameters."""
    rollouts, updates = [], []
    for (start, stop, name), y in places:
        if found := re.fullmatch(r"rollout (\d+) \(v(\d+)\)", name):
            rollouts.append((int(found[1]), int(found[2]), start, stop, y))
        elif found := re.fullmatch(r"update (\d+) -> v(\d+)", name):
            updates.append((int(found[1]), int(found[2]), start, stop, y))
    x = lambda t: LEFT + (t - begin) * scale
    line = '<line x1="{:.1f}" y1="{}" x2="{:.1f}" y2="{}" stroke="{}" stroke-width="1.5"{}/>'
    drawn = []
    for number, _, start, _, y in updates:
        for made in (r for r in rollouts if r[0] == number):
            drawn.append(line.format(x(made[3]), made[4] + BAR - 1, x(start), y, "#4c78a8", ' stroke-dasharray="3 2"'))
    for _, version, _, stop, y in updates:
        for taken in (r for r in rollouts if r[1] == version):
            # The actor may begin before the learner's span ends.
            drawn.append(line.format(x(min(stop, taken[2])), y, x(taken[2]), taken[4] + BAR - 1, "#f58518", ""))
    return drawn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("out")
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--from", dest="start", default="rollout")
    parser.add_argument("--to", dest="end", default="update")
    parser.add_argument("--title")
    parser.add_argument("--hide", action="append", default=[])
    parser.add_argument("--name", action="append", default=[])
    args = parser.parse_args()
    labels = dict(name.split("=", 1) for name in args.name)
    events = json.load(open(args.source))["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    names = {tid: name for tid, name in names.items() if not name.startswith(tuple(args.hide))}
    spans = [(e["tid"], e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e["ph"] == "X" and e["tid"] in names]
    starts = sorted(span[1] for span in spans if is_a(span[3], args.start))
    begin = starts[args.first]
    end = sorted(span[2] for span in spans if is_a(span[3], args.end) and span[1] >= begin)[args.count - 1]
    scale = (WIDTH - LEFT - 10) / (end - begin)
    body, places, y = [], [], TOP
    # Actors, then the other threads, then devices.
    for tid in sorted(names, key=lambda tid: (not names[tid].startswith("actor"), tid)):
        inside = sorted(s for s in spans if s[0] == tid and s[2] > begin and s[1] < end)
        inside.sort(key=lambda s: (s[1], -s[2]))
        open_ends, deepest = [], 0
        bars = {}
        for _, start, stop, name in inside:
            # Rounded to a nanosecond.
            open_ends = [x for x in open_ends if x > start + 0.002]
            depth = len(open_ends)
            open_ends.append(stop)
            deepest = max(deepest, depth)
            if begin <= start and stop <= end:
                places.append(((start, stop, name), y + depth * BAR))
            left = LEFT + (max(start, begin) - begin) * scale
            width = (min(stop, end) - max(start, begin)) * scale
            bars.setdefault(depth, []).append((left, width, name, stop - start))
        if not bars:
            continue
        label = labels.get(names[tid], names[tid])
        body.append(f'<text x="8" y="{y + 11}" font-weight="bold">{html.escape(label)}</text>')
        for depth, row in bars.items():
            last = -1.0
            for left, width, name, duration in row:
                # What is narrower than half a pixel is drawn once a half pixel.
                if left + width < last + 0.5:
                    continue
                last = left + width
                top = y + depth * BAR
                body.append(
                    f'<rect x="{left:.1f}" y="{top}" width="{max(width, 0.4):.1f}" height="{BAR - 1}" fill="{color(name)}">'
                    f"<title>{html.escape(name)}: {duration / 1e3:.3f} ms</title></rect>"
                )
                if width > 5.8 * len(name):
                    ink = "#333" if name.startswith(DARK) else "white"
                    body.append(f'<text x="{left + 3:.1f}" y="{top + 11}" fill="{ink}">{html.escape(name)}</text>')
        y += (deepest + 1) * BAR + GAP
    body += lines(places, scale, begin)
    height = y + 18
    step = 10 ** len(str(int((end - begin) / 1e3 / 10)))
    step = next(s for s in (step / 10, step / 5, step / 2, step) if (end - begin) / 1e3 / s <= 12)
    grid, t = [], 0.0
    while t <= (end - begin) / 1e3:
        x = LEFT + t * 1e3 * scale
        grid.append(f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{height - 20}" stroke="#ddd"/>')
        grid.append(f'<text x="{x:.1f}" y="{height - 6}" text-anchor="middle">{t:g} ms</text>')
        t += step
    title = args.title or f"PPO on CartPole: {args.count} iterations"
    with open(args.out, "w") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="10">\n')
        file.write('<rect width="100%" height="100%" fill="white"/>\n')
        file.write(f'<text x="8" y="18" font-size="13">{html.escape(title)}</text>\n')
        file.write("\n".join(grid + body) + "\n</svg>\n")


if __name__ == "__main__":
    main()
