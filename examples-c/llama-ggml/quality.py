#!/usr/bin/env python3
"""Quality of the llama.cpp plugin on a model, in stock binaries: perplexity, needles, greedy text.

    quality.py short MODEL          a minute: one text, short contexts; the form of check.sh
    quality.py long  MODEL          hours: four texts, 4,096 and 8,192 tokens, 16,384 with YaRN; 50 needles of a kind and
                                    length, in ten texts; --only perplexity, needles or greedy; --count texts of needles; --shortest
                                    and --longest tokens; --text words of a title
    quality.py table                Markdown of what is there
    quality.py plot FILE.svg        needles that were found, of what is there
    quality.py texts FOLDER         writes the texts, for measure.sh and iceformer-probe

After check.sh, which fetches llama.cpp and builds the programs. What is done is kept in a file, one line of JSON a result (--results,
by default target/llama-ggml/quality.jsonl), and not done again; a broken run goes on where it was. `short` ends with 1 where
accelerated attention is too far from the host's.
"""

import argparse
import hashlib
import html.parser
import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import sysconfig
import tempfile
import zlib

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE.parent.parent / os.environ.get("CARGO_TARGET_DIR", "target")
CACHE = pathlib.Path(os.environ.get("ICE_LLAMA_CACHE", TARGET / "llama-ggml"))
MODES = "host,exact,auto:0.05,auto:0.02"
KINDS = ["single", "keys", "values", "variables", "words"]
ASKED = 5  # questions of a kind about a text


class Prose(html.parser.HTMLParser):
    """Paragraphs and lists of a page's main part: menus and help are the same on every page."""

    def __init__(self):
        super().__init__()
        self.main, self.depth, self.parts = 0, 0, []

    def handle_starttag(self, tag, attrs):
        self.main += tag == "main"
        self.depth += tag in ("p", "li")

    def handle_endtag(self, tag):
        self.main -= tag == "main"
        if tag in ("p", "li"):
            self.depth = max(0, self.depth - 1)
            self.parts.append("\n")

    def handle_data(self, data):
        if self.main > 0 and self.depth:
            self.parts.append(re.sub(r"\s+", " ", data))


def prose(folder, pages="*.html"):
    """Pages in order, no line twice."""
    lines = {}
    for page in sorted(folder.glob(pages)):
        if page.name in ("print.html", "toc.html", "404.html"):
            continue
        parser = Prose()
        parser.feed(page.read_text(encoding="utf-8", errors="replace"))
        lines.update(dict.fromkeys(line.strip() for line in "".join(parser.parts).split("\n") if len(line.strip()) >= 30))
    return "\n".join(lines)


def code(files):
    return "\n".join(f.read_text(encoding="utf-8", errors="replace") for f in files)


def texts(most=4):
    """Name and text: two of prose, two of code, as they lie on a machine with Rust and Python, `most` of them. Missing ones are named."""
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    books = pathlib.Path(sysroot) / "share/doc/rust/html"
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    source = next(iter(sorted(CACHE.glob("llama.cpp-*"))), CACHE)
    makers = {
        "prose, the Rust book": lambda: prose(books / "book", "ch*.html"),
        "prose, the Rust reference": lambda: prose(books / "reference"),
        "code, Python's library": lambda: code(sorted(library.glob("*.py"))[:40]),
        "code, llama.cpp": lambda: code(sorted((source / "src").glob("llama-*.cpp"))),
    }
    made = {}
    for name, make in makers.items():
        if len(made) < most:
            text = make()
            text = text[:400_000]
            small = len(zlib.compress(text.encode()))
            if len(text) < 100_000:
                print(f"left out: {name}: {len(text)} characters on this machine", file=sys.stderr)
            elif small < len(text) / 7: # a model only has to copy it
                print(f"left out: {name}: repeats itself", file=sys.stderr)
            else:
                made[name] = text
    return made


# Prompts. Descriptions of the tasks are those of the RULER benchmark; words and sentences are our own.
FIRST = "Alder Birch Cedar Daisy Ember Fern Grove Hazel Iris Juniper Kestrel Laurel Maple Nettle Olive Poplar Quince Rowan Sorrel Thistle".split()
SECOND = "Bridge Court Dock Farm Gate Hall House Lane Lodge Mill Park Pier Point Road Square Station Street Tower Wharf Yard".split()
WORDS = ("lantern harbour saddle copper violin garden window pepper blanket button candle meadow pillow ribbon turtle walnut basket mirror "
         "camel tunnel kettle carpet helmet monkey pencil rocket tulip wagon zebra hammer magnet bottle").split()
SINGLE = ["lucky number", "population", "phone number", "height in feet", "year"]
OFTEN = ["somebody wrote down the word", "the shop sold a", "the child drew a", "the choir sang about a", "the king dreamed of a"]


def sentences(text):
    flat = re.sub(r"\s+", " ", text)
    return [s for s in re.split(r"(?<=[.!?]) ", flat) if 40 <= len(s) <= 300]


def haystack(tokens, number, filler):
    """Text of about so many tokens, ASKED questions of every kind, and the answers: filler sentences in order, with what is asked for at
    places of its own. All kinds ask about one text, so that it is attended once; every value and every hop is asked by itself."""
    draw = random.Random(f"{tokens} {number}")
    place = iter([f"{a} {b}" for a, b in zip(draw.sample(FIRST, 2 * ASKED), draw.sample(SECOND, 2 * ASKED))])
    value, word = iter(draw.sample(range(1000, 10000), 3 * ASKED + 1)), iter(draw.sample(WORDS, len(WORDS)))
    asked = {}

    asked["single"] = [(f"The {what} of {next(place)} is", next(value)) for what in SINGLE]
    asked["keys"] = [(f"The door code of {next(place)} is", next(value)) for _ in range(ASKED)]
    thing = next(word)
    asked["values"] = [(f"The {thing} number {which} is", next(value)) for which in ("one", "two", "three", "four", "five")]
    chain = [next(word) for _ in range(ASKED)]
    asked["variables"] = [(f"The value {next(value)} goes to", chain[0])] + [(f"The value of {a} goes to", b) for a, b in zip(chain, chain[1:])]
    said = {kind: [f"{ask} {answer}." for ask, answer in asked[kind]] for kind in asked}
    in_order = [said["values"], said["variables"]]
    lines = sum(said.values(), [])

    asked["words"] = []
    for what in OFTEN:
        often, others = next(word), [next(word) for _ in range(3)]
        lines += [f"{what.capitalize()} {w}." for w in [often] * 5 + others]
        asked["words"].append((f"Most often, {what}", often))

    room = tokens * 4 - sum(len(s) + 1 for s in lines)
    start = draw.randrange(len(filler))
    body = []
    while room > 0:
        sentence = filler[start % len(filler)]
        start += 1
        room -= len(sentence) + 1
        if room > 0:
            body.append(sentence)
    draw.shuffle(lines)
    for ordered in in_order:
        for slot, line in zip(sorted(map(lines.index, ordered)), ordered):
            lines[slot] = line
    at = sorted(draw.randrange(len(body) + 1) for _ in lines)
    for where, line in reversed(list(zip(at, lines))):
        body.insert(where, line)
    all_asked = sum((asked[kind] for kind in KINDS), [])
    return {"prompt": " ".join(body), "questions": "|".join(f"\n\n{ask}" for ask, _ in all_asked), "answers": "|".join(str(a) for _, a in all_asked)}


class Results:
    def __init__(self, path):
        self.path, self.done = pathlib.Path(path), {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                one = json.loads(line)
                self.done[one["key"]] = one

    def make(self, key, about, run):
        if key in self.done:
            print(f"there already: {key}", flush=True)
            return self.done[key]
        one = {"key": key, **about, "results": run()}
        with self.path.open("a") as out:
            out.write(json.dumps(one) + "\n")
        self.done[key] = one
        print(json.dumps(one), flush=True)
        return one


class Program:
    def __init__(self, model):
        found = sorted(CACHE.glob("linux-*/package/bins/*/libggml-base.so"))
        self.program, self.plugin = CACHE / "build/quality", CACHE / "build/libggml-iceformer.so"
        if not found or not self.program.exists():
            sys.exit("run check.sh first: it fetches llama.cpp and builds the programs")
        self.libraries, self.model = found[0].parent, model
        # Results of another plugin or model are others.
        mark = hashlib.sha256(self.plugin.read_bytes()).hexdigest()[:8]
        self.about = {"model": pathlib.Path(model).name, "plugin": mark}

    def run(self, kind, text, *rest, yarn=None):
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            environment = {**os.environ, **({"BENCH_YARN": str(yarn)} if yarn else {})}
            environment.setdefault("BENCH_THREADS", "1")
            words = [self.program, kind, self.libraries, self.plugin, self.model, file.name, *map(str, rest)]
            out = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True)
        if out.returncode != 0:
            sys.exit(f"{kind}: ended with {out.returncode}")
        return [json.loads(line) for line in out.stdout.splitlines()]


def run(model, results, modes, lengths=(), needle_lengths=(), count=10, greedy=(), most_texts=4, title_has=""):
    """lengths: (tokens, YaRN or None); greedy: (tokens, prompts, tokens to write)."""
    needle_modes = ",".join(modes.split(",")[:3])
    program = Program(model)
    name = "/".join(program.about.values())
    all_texts = texts(most_texts)
    if not all_texts:
        sys.exit("no text of 100,000 characters on this machine")
    # What is short comes first.
    for tokens, yarn in lengths:
        for title, text in all_texts.items():
            if title_has not in title:
                continue
            about = {**program.about, "kind": "perplexity", "text": title, "tokens": tokens, "yarn": yarn}
            mark = hashlib.sha256(text.encode()).hexdigest()[:8]
            results.make(f"{name} perplexity {title} {mark} {tokens} {yarn} {modes}", about,
                         lambda: program.run("perplexity", text, modes, tokens, yarn=yarn))
    filler = sentences(next(iter(all_texts.values())))
    for tokens in needle_lengths:
        for i in range(count):
            about = {**program.about, "kind": "needles", "tokens": tokens}
            text = json.dumps(haystack(tokens, i, filler), ensure_ascii=False)
            mark = hashlib.sha256(text.encode()).hexdigest()[:8]
            results.make(f"{name} needles {tokens} {i} {mark} {needle_modes}", about, lambda: program.run("needles", text, needle_modes, 8))
    for tokens, prompts, steps in greedy:
        for i in range(prompts):  # of all texts in turn
            title = list(all_texts)[i % len(all_texts)]
            about = {**program.about, "kind": "greedy", "text": title, "tokens": tokens, "steps": steps}
            results.make(f"{name} greedy {title} {tokens} {i} {prompts} {steps} {needle_modes}", about,
                         lambda: program.run("greedy", all_texts[title], needle_modes, tokens, i, prompts, steps))
    return [one for key, one in results.done.items() if key.startswith(name + " ")]


def table(all_results):
    for model, plugin in sorted({(one["model"], one["plugin"]) for one in all_results}):
        mine = [one for one in all_results if (one["model"], one["plugin"]) == (model, plugin)]
        print(f"\n{model}, plugin {plugin}\n")
        print("| text | tokens | YaRN | mode | perplexity | against the host | second half | KL, nats | same likeliest token | seconds |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        for one in (o for o in mine if o["kind"] == "perplexity"):
            host = one["results"][0]
            for r in one["results"]:
                rise = lambda what: f"{100 * (r[what] / host[what] - 1):+.2f} %"
                print(f"| {one['text']} | {one['tokens']} | {one['yarn'] or '-'} | {r['mode']} | {r['perplexity']:.3f} | {rise('perplexity')} | "
                      f"{rise('second_half')} | {r['kl']:.5f} | {100 * r['same']:.1f} % | {r['seconds']:.1f} |")
        needles = needles_of(mine)
        for tokens in sorted({o["tokens"] for o in needles}):
            rows = [o["results"][0] for o in needles if o["tokens"] == tokens]
            modes = [m for m in rows[0] if m != "tokens"]
            print(f"\nNeedles, {len(rows)} texts of {min(r['tokens'] for r in rows)} to {max(r['tokens'] for r in rows)} tokens: right, and "
                  f"questions that one answers and the other does not\n")
            print(f"| kind | {' | '.join(modes)} | of |{''.join(f' {modes[0]} only, {m} only |' for m in modes[1:])}")
            print(f"|---|{'---|' * (2 * len(modes))}")
            for kinds in [[kind] for kind in KINDS] + [KINDS]:
                right = {m: sum((right_of(r, m, kind) for r in rows for kind in kinds), []) for m in modes}
                only = lambda a, b: sum(x > y for x, y in zip(right[a], right[b]))
                beside = "".join(f" {only(modes[0], m)}, {only(m, modes[0])} |" for m in modes[1:])
                name = kinds[0] if len(kinds) == 1 else "all"
                print(f"| {name} | {' | '.join(str(sum(right[m])) for m in modes)} | {len(right[modes[0]])} |{beside}")
        greedy = [o for o in mine if o["kind"] == "greedy"]
        if greedy:
            modes = [m for m in greedy[0]["results"][0] if m not in ("prompt", "host")]
            print(f"\nGreedy, {greedy[0]['steps']} tokens written: tokens before the host's text is left (the host's lead of its likeliest token there, nats)\n")
            print(f"| prompt | tokens | {' | '.join(modes)} |\n|---|---|{'---|' * len(modes)}")
            for one in greedy:
                r = one["results"][0]
                said = [f"{r[m][0]} ({r[m][1]:.2f})" if r[m][0] < one["steps"] else f"all {r[m][0]}" for m in modes]
                print(f"| {r['prompt'] + 1}, {one['text']} | {one['tokens']} | {' | '.join(said)} |")


def needles_of(all_results):
    """Those that were asked as haystack() asks now: a file may hold older ones."""
    return [o for o in all_results if o["kind"] == "needles" and len(o["results"][0]["host"]) == ASKED * len(KINDS)]


def right_of(row, mode, kind):
    """Answers of a kind to one text: 1 where right."""
    begin = ASKED * KINDS.index(kind)
    return row[mode][begin:begin + ASKED]


def plot(all_results, path):
    needles = needles_of(all_results)
    lengths = sorted({o["tokens"] for o in needles})
    if not needles:
        sys.exit("no needles yet")
    modes = [m for m in needles[0]["results"][0] if m != "tokens"]
    colours = ["#888888", "#3b6fb6", "#c8553d", "#44a050"]
    wide, high, parts = 60 + 24 * len(modes), 200, []
    for row, tokens in enumerate(lengths):
        rows, top = [o["results"][0] for o in needles if o["tokens"] == tokens], 50 + 290 * row
        parts.append(f'<text x="20" y="{top - 20}" font-weight="bold">Right answers in 100, {len(rows)} texts of {min(r["tokens"] for r in rows)} to {max(r["tokens"] for r in rows)} tokens</text>')
        for column, kind in enumerate(KINDS):
            left = 20 + wide * column
            for m, mode in enumerate(modes):
                answers = sum((right_of(r, mode, kind) for r in rows), [])
                share = sum(answers) / len(answers)
                x, y = left + 24 * m, top + high * (1 - share)
                parts.append(f'<rect x="{x}" y="{y:.1f}" width="20" height="{high * share:.1f}" fill="{colours[m % 4]}"/>')
                parts.append(f'<text x="{x + 10}" y="{y - 4:.1f}" text-anchor="middle">{100 * share:.0f}</text>')
            parts.append(f'<text x="{left}" y="{top + high + 16}">{kind}, {len(answers)}</text>')
        for m, mode in enumerate(modes):
            parts.append(f'<text x="{20 + 140 * m}" y="{top + high + 38}" fill="{colours[m % 4]}">{"llama.cpp" if mode == "host" else mode}</text>')
    body = "\n".join(parts)
    size = f"{40 + wide * len(KINDS)} {10 + 290 * len(lengths)}"
    pathlib.Path(path).write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="12">\n'
                                  f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("form", choices=["short", "long", "table", "plot", "texts"])
    parser.add_argument("model", nargs="?", metavar="MODEL, FOLDER or FILE")
    parser.add_argument("--results", default=CACHE / "quality.jsonl")
    parser.add_argument("--only", choices=["perplexity", "needles", "greedy"])
    parser.add_argument("--count", type=int, default=10, help="texts of needles of a length; each is asked five questions of every kind")
    parser.add_argument("--shortest", type=int, default=0, help="tokens")
    parser.add_argument("--longest", type=int, default=16384, help="tokens")
    parser.add_argument("--text", default="", help="perplexity of texts with this in their title")
    options = parser.parse_args()
    results = Results(options.results)
    if options.form == "texts":
        if not options.model:
            parser.error("a folder is wanted")
        folder = pathlib.Path(options.model)
        folder.mkdir(parents=True, exist_ok=True)
        for title, text in texts().items():
            file = folder / (re.sub(r"[^a-z0-9]+", "-", title.lower()) + ".txt")
            file.write_text(text, encoding="utf-8")
            print(file)
        return
    if options.form == "table":
        table(results.done.values())
        return
    if not options.model:
        parser.error("a model or a file is wanted")
    if options.form == "plot":
        plot(results.done.values(), options.model)
        return
    if options.form == "short":
        mine = run(options.model, results, "host,exact,auto:0.05", [(3072, None)], [2560], 2, [(2304, 2, 8)], most_texts=1)
    else:
        asked = lambda what, all_of: all_of if options.only in (None, what) else []
        fits = lambda tokens: options.shortest <= tokens <= options.longest
        lengths = [(n, y) for n, y in asked("perplexity", [(4096, None), (8192, None), (16384, 2)]) if fits(n)]
        # A prompt has about nine tenths of so many tokens, and below 2,048 all attention is exact.
        needle_lengths = [n for n in asked("needles", [2560, 4096, 8192]) if fits(n)]
        mine = run(options.model, results, MODES, lengths, needle_lengths, options.count, asked("greedy", [(2560, 10, 128)]),
                   title_has=options.text)
    table(mine)
    for one in (o for o in mine if o["kind"] == "perplexity" and options.form == "short"):
        host, exact, fast = one["results"]
        wrong = [r["mode"] for r, most in ((exact, 0.001), (fast, 0.02)) if not math.isfinite(r["perplexity"]) or
                 abs(r["perplexity"] / host["perplexity"] - 1) > most]
        if wrong:
            sys.exit(f"perplexity of {', '.join(wrong)} is too far from the host's")


main()
