"""Episodic returns over steps as an SVG: the mean over runs, and the range between them.

usage: curves.py OUT.svg TITLE RUN_DIR [RUN_DIR ...]

Reads `charts/episodic_return` from the event files; needs nothing but Python.
"""
import glob
import struct
import sys

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 320, 56, 40, 36
BINS = 100


def fields(data):
    """(number, value) of each field of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
        elif kind == 1:
            yield key >> 3, data[at : at + 8]
            at += 8
        elif kind == 2:
            size = varint()
            yield key >> 3, data[at : at + size]
            at += size
        else:
            yield key >> 3, data[at : at + 4]
            at += 4


def returns(run):
    points = []
    for path in glob.glob(run + "/events*"):
        data, at = open(path, "rb").read(), 0
        while at + 12 <= len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            event = dict(fields(data[at + 12 : at + 12 + size]))
            at += size + 16
            for number, value in fields(event.get(5, b"")):
                scalar = dict(fields(value)) if number == 1 else {}
                if scalar.get(1) == b"charts/episodic_return" and 2 in scalar:
                    points.append((event.get(2, 0), struct.unpack("<f", scalar[2])[0]))
    return points


def binned(points, last):
    sums = [[0.0, 0] for _ in range(BINS)]
    for step, value in points:
        cell = sums[min(step * BINS // (last + 1), BINS - 1)]
        cell[0] += value
        cell[1] += 1
    means, held = [], None
    for total, count in sums:
        held = total / count if count else held
        means.append(held)
    first = next(value for value in means if value is not None)
    return [first if value is None else value for value in means]


def main():
    out, title, runs = sys.argv[1], sys.argv[2], sys.argv[3:]
    points = [returns(run) for run in runs]
    last = max(step for run in points for step, _ in run)
    curves = [binned(run, last) for run in points]
    columns = list(zip(*curves))
    low, high = min(map(min, columns)), max(map(max, columns))
    low = min(low, 0) if high > 0 else low

    def x(i):
        return LEFT + (WIDTH - LEFT - 16) * (i + 0.5) / BINS

    def y(value):
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value - low) / (high - low or 1)

    band = [(x(i), y(max(c))) for i, c in enumerate(columns)]
    band += [(x(i), y(min(c))) for i, c in reversed(list(enumerate(columns)))]
    mean = [(x(i), y(sum(c) / len(c))) for i, c in enumerate(columns)]

    def path(line):
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in line)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{title}</text>',
    ]
    for part in range(6):
        value = low + (high - low) * part / 5
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - 16}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.0f}</text>')
        step = last * part / 5
        place = LEFT + (WIDTH - LEFT - 16) * part / 5
        lines.append(f'<text x="{place:.1f}" y="{HEIGHT - 18}" text-anchor="middle">{step / 1000:.0f}k</text>')
    lines += [
        f'<polygon points="{path(band)}" fill="#4a7fb5" fill-opacity="0.25"/>',
        f'<polyline points="{path(mean)}" fill="none" stroke="#1f5a96" stroke-width="2"/>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" text-anchor="middle">steps</text>',
        "</svg>",
    ]
    open(out, "w").write("\n".join(lines) + "\n")


main()
