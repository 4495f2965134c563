#!/usr/bin/env python3
"""Draws the pictures of the manual, with the standard library alone:

    python3 docs/img/draw.py            # writes the SVG files beside this one
    python3 docs/img/draw.py --check    # fails where a file is not what this draws

Everything that looks measured in them is computed here: cells are cut and opened as `core/src/attention/clustered` does it, in two
dimensions, from numbers of a seeded generator.
"""

import math
import pathlib
import random
import sys

HERE = pathlib.Path(__file__).parent
INK, SOFT, PAPER = "#1f2933", "#7b8794", "#ffffff"
KNOWN, OPEN, MEAN, NEAR, FINDS, MEASURES = "#c2410c", "#2563eb", "#cbd5e1", "#475569", "#b45309", "#0f766e"


class Picture:
    def __init__(self, width, height, title):
        self.size, self.title, self.parts = (width, height), title, []

    def rect(self, x, y, w, h, fill, stroke="none", rx=0, width=1):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{rx}" fill="{fill}" '
                          f'stroke="{stroke}" stroke-width="{width}"/>')

    def circle(self, x, y, r, fill, stroke="none", width=1):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}" fill="{fill}" stroke="{stroke}" stroke-width="{width}"/>')

    def line(self, x1, y1, x2, y2, stroke=INK, width=1, dash=None, arrow=False):
        more = f' stroke-dasharray="{dash}"' if dash else ""
        more += ' marker-end="url(#arrow)"' if arrow else ""
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width}"{more}/>')

    def path(self, d, stroke=INK, width=1, fill="none", arrow=False):
        more = ' marker-end="url(#arrow)"' if arrow else ""
        self.parts.append(f'<path d="{d}" stroke="{stroke}" stroke-width="{width}" fill="{fill}"{more}/>')

    def dots(self, d, stroke, width):
        self.parts.append(f'<path d="{d}" stroke="{stroke}" stroke-width="{width}" stroke-linecap="round"/>')

    def text(self, x, y, words, size=13, fill=INK, anchor="start", weight="normal", style="normal"):
        words = words.replace("&", "&amp;").replace("<", "&lt;")
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}" '
                          f'font-weight="{weight}" font-style="{style}">{words}</text>')

    def svg(self):
        w, h = self.size
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" '
                f'font-family="Helvetica, Arial, sans-serif" role="img"><title>{self.title}</title>'
                '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
                f'<path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>')
        return "\n".join([head, f'<rect width="{w}" height="{h}" fill="{PAPER}"/>', *self.parts, "</svg>"]) + "\n"


def block():
    """A block of rows against the keys before it."""
    p = Picture(1010, 470, "How accelerated attention works: one block of rows against all keys")
    rng = random.Random(5)
    left, top, cell, row = 150, 92, 14, 15
    cells, near, rows = 34, 12, 16
    known = {0: [0.12, 0.5, 0.85], 7: [0.5], 16: [0.25], 17: [0.7], 26: [0.4]}
    finds, measures = {2, 8, 13}, {5, 11}
    p.text(left, 30, "Keys, oldest first", 15, weight="bold")
    p.text(left, 50, "far: in cells of 16 similar keys", 13, SOFT)
    p.text(left + cells * cell + 8, 50, "near: one by one", 13, SOFT)
    p.text(20, 30, "Rows", 15, weight="bold")
    p.text(20, 50, "a block of 256", 13, SOFT)
    # Segments of 16 cells.
    for c in range(cells):
        x = left + c * cell
        p.line(x, 64, x + cell - 2, 64, SOFT, 3)
    for c in range(near):
        p.circle(left + cells * cell + 12 + c * cell + 4, 64, 2, SOFT)
    for r in range(rows):
        y = top + r * row
        kind = "finds" if r in finds else "measures" if r in measures else None
        if kind:
            color = FINDS if kind == "finds" else MEASURES
            p.text(left - 10, y + 10, "finds keys" if kind == "finds" else "measures", 12, color, "end", "bold")
        opened = {rng.randrange(cells) for _ in range(2)} | ({20} if 4 <= r <= 9 else set())
        far = cells * cell - 2
        if kind == "finds":
            p.rect(left, y, far, row - 4, FINDS)
        else:
            p.rect(left, y, far, row - 4, "#f1f5f9")
            closed = (f"M{left + c * cell + 6},{y + 5.5} h0" for c in range(cells) if c not in opened)
            p.dots(" ".join(closed), "#94a3b8", 4)
            for c in sorted(opened):
                p.rect(left + c * cell, y, cell - 2, row - 4, OPEN)
            for c, places in known.items():
                for at in places:
                    p.rect(left + c * cell + at * (cell - 3), y - 1, 2.2, row - 2, KNOWN)
        for c in range(near):
            x = left + cells * cell + 12 + c * cell
            if c <= 3 + r * (near - 3) / rows:
                p.rect(x, y, cell - 2, row - 4, FINDS if kind == "finds" else NEAR)
        if kind == "measures":
            p.rect(left - 4, y - 3, (cells + near) * cell + 18, row + 1, "none", MEASURES, 3, 2)
    for c in range(1, cells):
        p.line(left + c * cell - 1, top - 1, left + c * cell - 1, top + rows * row - 3, PAPER, 2)
    # From sampled rows to known keys, and from measured rows to the threshold.
    right = left + (cells + near) * cell + 26
    y0 = top + rows * row
    p.text(right, top + 8, "3 rows of a block are", 13, FINDS, weight="bold")
    p.text(right, top + 24, "attended exactly. A key", 13)
    p.text(right, top + 40, "that is heavy for one of", 13)
    p.text(right, top + 56, "them is known: all rows", 13)
    p.text(right, top + 72, "score it exactly.", 13)
    p.text(right, top + 108, "2 rows are attended", 13, MEASURES, weight="bold")
    p.text(right, top + 124, "both ways. The difference", 13)
    p.text(right, top + 140, "is the measured error.", 13)
    p.text(right, top + 156, "It sets how much the", 13)
    p.text(right, top + 172, "next rows open, and it is", 13)
    p.text(right, top + 188, "in the statistics.", 13)
    y = y0 + 34
    legend = [(KNOWN, "known", "Known heavy key: scored exactly, for all rows"),
              (OPEN, "cell", "Cell opened for this row: its 16 keys are scored exactly"),
              ("mean", "mean", "Cell estimated: its mean key and mean value stand for 16 keys"),
              (NEAR, "cell", "Near keys, and keys outside cells: scored exactly"),
              (FINDS, "cell", "Sampled row: every key is scored; its output is exact")]
    for i, (color, kind, words) in enumerate(legend):
        ly = y + i * 23
        if kind == "known":
            p.rect(left - 20, ly - 10, 3, 14, KNOWN)
        elif kind == "mean":
            p.rect(left - 24, ly - 9, 12, 11, "#f1f5f9")
            p.circle(left - 18, ly - 3.5, 2, "#94a3b8")
        else:
            p.rect(left - 24, ly - 9, 12, 11, color)
        p.text(left, ly, words, 14)
    return p


def halves(points, ids):
    """Cells of 16 of a segment, cut as `split.rs` does: at the median along the difference of two means."""
    if len(ids) == 16:
        return [ids]
    mean = [sum(points[i][a] for i in ids) / len(ids) for a in (0, 1)]
    far = max(ids, key=lambda i: (points[i][0] - mean[0]) ** 2 + (points[i][1] - mean[1]) ** 2)
    d = [points[far][a] - mean[a] for a in (0, 1)]
    for _ in range(2):
        above = [i for i in ids if (points[i][0] - mean[0]) * d[0] + (points[i][1] - mean[1]) * d[1] > 0]
        if not above or len(above) == len(ids):
            break
        d = [sum(points[i][a] for i in above) / len(above) - mean[a] for a in (0, 1)]
    by = sorted(ids, key=lambda i: (points[i][0] * d[0] + points[i][1] * d[1], i))
    half = len(ids) // 2
    return halves(points, by[:half]) + halves(points, by[half:])


def segment():
    """256 keys of a segment around eight centres."""
    rng = random.Random(11)
    centres = [(rng.uniform(-1, 1), rng.uniform(-1, 1)) for _ in range(9)]
    points = []
    for _ in range(256):
        c = rng.choice(centres)
        points.append((c[0] + rng.gauss(0, 0.16), c[1] + rng.gauss(0, 0.16)))
    return points, halves(points, list(range(256)))


def cells():
    """One segment's cells, and which a query opens."""
    p = Picture(980, 450, "A segment of 256 keys in 16 cells, and the cells that a query opens")
    points, groups = segment()
    means = [[sum(points[i][a] for i in g) / 16 for a in (0, 1)] for g in groups]
    squares = [sum((points[i][0] - m[0]) ** 2 + (points[i][1] - m[1]) ** 2 for i in g) / 16 for g, m in zip(groups, means)]
    cov = [[0.0, 0.0], [0.0, 0.0]]
    for g, m in zip(groups, means):
        for i in g:
            d = [points[i][0] - m[0], points[i][1] - m[1]]
            for a in (0, 1):
                for b in (0, 1):
                    cov[a][b] += d[a] * d[b] / 256
    trace = cov[0][0] + cov[1][1]
    q = (4.6, 2.6)
    logit = lambda v: q[0] * v[0] + q[1] * v[1]
    spread = math.sqrt(sum(q[a] * cov[a][b] * q[b] for a in (0, 1) for b in (0, 1)))
    deviations = [math.sqrt(s / trace) * spread for s in squares]
    total = sum(math.exp(logit(v)) for v in points)
    threshold = math.log(0.015 * total)
    opened = [logit(m) + 3 * d >= threshold for m, d in zip(means, deviations)]
    heavy = [i for i, v in enumerate(points) if logit(v) >= threshold]
    left = [g for g, o in zip(groups, opened) if not o]

    scale, ox, oy = 118, 230, 228
    at = lambda v: (ox + scale * v[0], oy - scale * v[1])
    p.text(20, 28, "256 keys, halved four times into 16 cells", 15, weight="bold")
    colors = ["#2563eb", "#c2410c", "#0f766e", "#a16207", "#7c3aed", "#be185d", "#15803d", "#475569"]
    for n, g in enumerate(groups):
        for i in g:
            x, y = at(points[i])
            p.circle(x, y, 2.6, colors[n % 8] + "99")
    for n, m in enumerate(means):
        x, y = at(m)
        p.circle(x, y, scale * math.sqrt(squares[n]), "none", colors[n % 8], 1.4)
        p.rect(x - 3, y - 3, 6, 6, colors[n % 8], PAPER)
    p.text(20, 420, "square: mean key of a cell", 12.5, SOFT)
    p.text(20, 436, "circle: root of the mean square distance of its keys from it", 12.5, SOFT)

    ox = 700
    p.text(490, 28, "What a query opens", 15, weight="bold")
    for n, g in enumerate(groups):
        for i in g:
            x, y = at(points[i])
            p.circle(x, y, 2.6, OPEN if opened[n] else "#cbd5e1")
    for n, m in enumerate(means):
        if not opened[n]:
            x, y = at(m)
            p.rect(x - 4, y - 4, 8, 8, "#94a3b8", PAPER)
    for i in heavy:
        x, y = at(points[i])
        p.circle(x, y, 4.6, "none", KNOWN, 1.8)
    # Where logits reach the threshold.
    n2 = q[0] ** 2 + q[1] ** 2
    foot = (q[0] * threshold / n2, q[1] * threshold / n2)
    along = (-q[1] / math.sqrt(n2), q[0] / math.sqrt(n2))
    a, b = ([foot[0] + s * along[0], foot[1] + s * along[1]] for s in (-1.2, 1.0))
    p.line(*at(a), *at(b), KNOWN, 1.5, "6 4")
    p.line(*at((0, 0)), *at((q[0] * 0.16, q[1] * 0.16)), INK, 2.2, arrow=True)
    x, y = at((q[0] * 0.16, q[1] * 0.16))
    p.text(x - 6, y - 10, "q", 16, weight="bold", style="italic")
    missed = sum(1 for i in heavy if any(i in g for g in left))
    p.text(490, 420, f"dashed: threshold. Ringed: {len(heavy)} keys that weigh 1.5 % and more", 12.5, SOFT)
    p.text(490, 436, f"blue: {sum(opened)} of 16 cells are opened; ringed keys missed: {missed}", 12.5, SOFT)
    p.text(490, 452, "grey squares: mean keys that stand for the other cells", 12.5, SOFT)
    p.size = (980, 464)
    return p


def lift():
    """The paper's lift of keys onto the unit sphere, keys on a line."""
    p = Picture(980, 330, "The lift: the key with the largest inner product becomes the nearest point")
    c = 2.2
    keys = [-1.7, -0.9, -0.2, 0.6, 1.1, 1.6, 2.1]
    scale, ox, oy = 210, 330, 270
    p.text(20, 28, "Keys of different length (one dimension, below) are lifted onto the unit sphere (here a half circle)", 15, weight="bold")
    p.line(ox - scale - 20, oy, ox + scale + 40, oy, SOFT, 1)
    p.path(f"M {ox - scale},{oy} A {scale},{scale} 0 0 1 {ox + scale},{oy}", SOFT, 1.2)
    best = max(keys)
    for k in keys:
        x, y = ox + scale * k / c, oy - scale * math.sqrt(1 - (k / c) ** 2)
        p.line(x, oy, x, y, "#cbd5e1", 1, "4 3")
        p.circle(x, oy, 4, SOFT)
        p.circle(x, y, 5, KNOWN if k == best else OPEN)
    qx, qy = ox + scale, oy
    p.circle(qx, qy, 6, INK)
    p.text(qx + 12, qy - 6, "T(q) = (q / |q|, 0)", 14, weight="bold")
    x, y = ox + scale * best / c, oy - scale * math.sqrt(1 - (best / c) ** 2)
    p.line(qx, qy, x, y, KNOWN, 1.8)
    p.text(x + 14, y - 8, "nearest: the key with the largest product with q", 13, KNOWN)
    p.text(590, 90, "T(k) = (k / c, root of 1 - |k|^2 / c^2)", 14)
    p.text(590, 110, "c: at least the length of every key", 13, SOFT)
    p.text(590, 138, "|T(q) - T(k)|^2 = 2 - 2 q.k / (c |q|)", 14)
    p.text(590, 166, "So the order of distances is the order of weights,", 13, SOFT)
    p.text(590, 184, "whatever the lengths of the keys.", 13, SOFT)
    p.text(ox - scale - 20, oy + 26, "keys k / c", 13, SOFT)
    return p


def ranking():
    """Prioritized DCI along two directions."""
    p = Picture(980, 330, "Prioritized DCI: keys sorted along random directions, visited from the query outwards")
    rng = random.Random(3)
    keys = [(rng.gauss(0, 1), rng.gauss(0, 0.8)) for _ in range(26)]
    q = (0.7, 0.35)
    dist = sorted(range(26), key=lambda i: (keys[i][0] - q[0]) ** 2 + (keys[i][1] - q[1]) ** 2)
    near = set(dist[:3])
    scale, ox, oy = 82, 210, 180
    p.text(20, 28, "Keys, and the three nearest to the query", 15, weight="bold")
    for i, k in enumerate(keys):
        p.circle(ox + scale * k[0], oy - scale * k[1], 5, KNOWN if i in near else "#94a3b8")
    p.circle(ox + scale * q[0], oy - scale * q[1], 6, INK)
    p.text(ox + scale * q[0] - 4, oy - scale * q[1] - 12, "q", 16, weight="bold", style="italic")
    p.text(470, 28, "The same keys sorted along two random directions", 15, weight="bold")
    for n, angle in enumerate((0.35, 1.85)):
        u = (math.cos(angle), math.sin(angle))
        y = 110 + 110 * n
        p.line(480, y, 950, y, SOFT, 1)
        at = lambda v: 715 + 92 * (v[0] * u[0] + v[1] * u[1])
        order = sorted(range(26), key=lambda i: abs(at(keys[i]) - at(q)))
        seen = order[:8]
        for i, k in enumerate(keys):
            p.circle(at(k), y, 5, KNOWN if i in near else OPEN if i in seen else "#cbd5e1")
            if i in seen:
                p.text(at(k), y + 24 + 13 * (seen.index(i) % 2), str(seen.index(i) + 1), 11, SOFT, "middle")
        p.line(at(q), y - 26, at(q), y + 8, INK, 2)
        p.text(at(q), y - 32, "q", 15, weight="bold", style="italic", anchor="middle")
        p.text(480, y - 24, f"direction {n + 1}", 12.5, SOFT)
    p.text(470, 300, "numbers: order of visits from the query outwards. A key that came up", 12.5, SOFT)
    p.text(470, 316, "along all directions of a composite index is a candidate", 12.5, SOFT)
    return p


PICTURES = {"block.svg": block, "cells.svg": cells, "lift.svg": lift, "ranking.svg": ranking}


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    for name, draw in PICTURES.items():
        path, svg = HERE / name, draw().svg()
        if not check:
            path.write_text(svg)
        elif not path.is_file() or path.read_text() != svg:
            sys.exit(f"{name} is not what docs/img/draw.py draws: run it")


main()
