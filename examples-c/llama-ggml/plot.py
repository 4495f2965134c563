#!/usr/bin/env python3
"""Draws what measure.sh prints: plot.py <its output> <file.svg>."""

import math
import sys

COLOURS = {"host": "#888888", "exact": "#3b6fb6", "auto": "#c8553d"}
NAMES = {"host": "llama.cpp", "exact": "plugin, exact", "auto": "plugin, accelerated"}


def read(path):
    """{mode: [(tokens, ms of attention a layer, ms of a decoding step's attention a layer)]}, one thread."""
    out, columns = {}, None
    for line in open(path, encoding="utf-8"):
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if cells[0] == "tokens" and "attention ms a layer" in cells:
            columns = cells.index("attention ms a layer"), cells.index("attention of a step, ms a layer")
        if out and not line.startswith("|"):
            break
        if columns and cells[0].isdigit() and cells[1] == "1" and cells[2] in COLOURS:
            out.setdefault(cells[2], []).append((int(cells[0]), *(float(cells[c]) for c in columns)))
    return out


def number(x):
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}"


def panel(data, which, left, title):
    width, height, top = 300, 240, 50
    points = [row[which] for rows in data.values() for row in rows]
    low, high = math.log10(min(points)) - 0.1, math.log10(max(points)) + 0.1
    lengths = sorted({row[0] for rows in data.values() for row in rows})
    x = lambda n: left + 30 + (width - 60) * (lengths.index(n) / max(1, len(lengths) - 1))
    y = lambda v: top + height * (1 - (math.log10(v) - low) / (high - low))
    parts = [f'<text x="{left}" y="{top - 14}" font-weight="bold">{title}</text>',
             f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#cccccc"/>']
    parts += [f'<text x="{x(n)}" y="{top + height + 18}" text-anchor="middle">{n}</text>' for n in lengths]
    for mode, rows in data.items():
        at = " ".join(f"{x(r[0]):.1f},{y(r[which]):.1f}" for r in rows)
        parts.append(f'<polyline points="{at}" fill="none" stroke="{COLOURS[mode]}" stroke-width="2"/>')
        for r in rows:
            parts.append(f'<circle cx="{x(r[0]):.1f}" cy="{y(r[which]):.1f}" r="3" fill="{COLOURS[mode]}"/>')
            parts.append(f'<text x="{x(r[0]):.1f}" y="{y(r[which]) - 7:.1f}" text-anchor="middle" fill="{COLOURS[mode]}">{number(r[which])}</text>')
    return parts


def main():
    data = read(sys.argv[1])
    if set(data) != set(COLOURS):
        sys.exit(f"{sys.argv[1]}: no table with {', '.join(COLOURS)}")
    parts = panel(data, 1, 20, "Prompt: attention of a layer, ms") + panel(data, 2, 360, "One token: attention of a layer, ms")
    for i, mode in enumerate(data):
        parts.append(f'<text x="{20 + 150 * i}" y="335" fill="{COLOURS[mode]}">{NAMES[mode]}</text>')
    body = "\n".join(parts)
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        out.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 350" font-family="sans-serif" font-size="12">\n'
                  f'<rect width="680" height="350" fill="white"/>\n{body}\n</svg>\n')


main()
