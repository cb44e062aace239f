"""A stretch of a timeline as an SVG: rows of threads and devices, spans inside spans below each other.

usage: timeline.py RUN.json OUT.svg FIRST COUNT

From the start of the FIRSTth `rollout` to the end of the COUNTth `update` after it. Needs nothing but
Python.
"""
import html
import json
import sys

WIDTH, LEFT, BAR, GAP, TOP = 960, 110, 15, 12, 34
COLOURS = {
    "rollout": "#4c78a8", "update": "#f58518", "env step": "#54a24b", "env recv": "#88c27f", "envs": "#54a24b",
    "execute": "#b279a2", "trace": "#e45756", "lower": "#ff9da6", "compile": "#9d755d", "to": "#bab0ac", "wait": "#d8d2cf",
}


def colour(name):
    keys = [key for key in COLOURS if name.startswith(key)]
    return COLOURS[keys[0]] if keys else "#72b7b2"


def main():
    source, out, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    events = json.load(open(source))["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [(e["tid"], e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e["ph"] == "X"]
    starts = sorted(span[1] for span in spans if span[3] == "rollout")
    ends = sorted(span[2] for span in spans if span[3] == "update")
    begin, end = starts[first], ends[first + count - 1]
    scale = (WIDTH - LEFT - 10) / (end - begin)
    body, y = [], TOP
    for tid in sorted(names):
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
            left = LEFT + (max(start, begin) - begin) * scale
            width = (min(stop, end) - max(start, begin)) * scale
            bars.setdefault(depth, []).append((left, width, name, stop - start))
        if not bars:
            continue
        body.append(f'<text x="8" y="{y + 11}" font-weight="bold">{html.escape(names[tid])}</text>')
        for depth, row in bars.items():
            last = -1.0
            for left, width, name, duration in row:
                # What is narrower than half a pixel is drawn once a half pixel.
                if left + width < last + 0.5:
                    continue
                last = left + width
                top = y + depth * BAR
                body.append(
                    f'<rect x="{left:.1f}" y="{top}" width="{max(width, 0.4):.1f}" height="{BAR - 1}" fill="{colour(name)}">'
                    f"<title>{html.escape(name)}: {duration / 1e3:.3f} ms</title></rect>"
                )
                if width > 7 * len(name):
                    body.append(f'<text x="{left + 3:.1f}" y="{top + 11}" fill="white">{html.escape(name)}</text>')
        y += (deepest + 1) * BAR + GAP
    height = y + 18
    step = 10 ** len(str(int((end - begin) / 1e3 / 10)))
    step = next(s for s in (step / 10, step / 5, step / 2, step) if (end - begin) / 1e3 / s <= 12)
    grid, t = [], 0.0
    while t <= (end - begin) / 1e3:
        x = LEFT + t * 1e3 * scale
        grid.append(f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{height - 20}" stroke="#ddd"/>')
        grid.append(f'<text x="{x:.1f}" y="{height - 6}" text-anchor="middle">{t:g} ms</text>')
        t += step
    with open(out, "w") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="10">\n')
        file.write('<rect width="100%" height="100%" fill="white"/>\n')
        file.write(f'<text x="8" y="18" font-size="13">PPO on CartPole: {count} iterations</text>\n')
        file.write("\n".join(grid + body) + "\n</svg>\n")


if __name__ == "__main__":
    main()
