#!/usr/bin/env python3
"""Quality of the llama.cpp plugin on a model, in stock binaries: perplexity, needles, greedy text.

    quality.py short MODEL          a minute: one text, short contexts; the form of check.sh
    quality.py long  MODEL          hours: four texts, 4,096 and 8,192 tokens, 16,384 with YaRN, 50 prompts a kind and length;
                                    --only perplexity, needles or greedy; --count prompts; --longest tokens; --text words of a title
    quality.py table                Markdown of what is there
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
WORDS = "lantern harbour saddle copper violin garden window pepper blanket anchor candle meadow pillow ribbon turtle walnut basket mirror".split()


def sentences(text):
    flat = re.sub(r"\s+", " ", text)
    return [s for s in re.split(r"(?<=[.!?]) ", flat) if 40 <= len(s) <= 300]


def prompt(kind, tokens, number, filler):
    """(prompt, answer) of about so many tokens: filler sentences in order, with what is asked for at places of its own."""
    draw = random.Random(f"{kind} {tokens} {number}")
    places = [f"{a} {b}" for a in FIRST for b in SECOND]
    draw.shuffle(places)
    number_of = iter(draw.sample(range(1000, 10000), 200))
    note = lambda place, value: f"The door code of {place} is {value}."
    if kind == "single":
        value = next(number_of)
        lines, ask, answer = [note(places[0], value)], f"The door code of {places[0]} is", str(value)
    elif kind == "keys":
        values = [next(number_of) for _ in range(8)]
        lines = [note(p, v) for p, v in zip(places, values)]
        ask, answer = f"The door code of {places[0]} is", str(values[0])
    elif kind == "values":
        values = [next(number_of) for _ in range(3)]
        lines = [f"A visitor of {places[0]} got the ticket {v}." for v in values]
        ask, answer = f"The three tickets that visitors of {places[0]} got, in order, are", "|".join(map(str, values))
    elif kind == "variables":
        names, value = draw.sample(WORDS, 4), next(number_of)
        lines = [f"Let {names[0]} be {value}."] + [f"Let {b} be the same as {a}." for a, b in zip(names, names[1:])]
        ask, answer = f"All of {', '.join(names)} are the same number, which is", str(value)
    else:
        names = draw.sample(WORDS, 10)
        lines = [f"Somebody wrote down the word {n}." for n in [names[0]] * 12 + [n for n in names[1:] for _ in range(2)]]
        draw.shuffle(lines)
        ask, answer = "The word that was written down most often is the word", names[0]
    room = tokens * 4 - sum(len(s) + 1 for s in lines) - len(ask)
    start = draw.randrange(len(filler))
    body = []
    while room > 0:
        sentence = filler[start % len(filler)]
        start += 1
        room -= len(sentence) + 1
        if room > 0:
            body.append(sentence)
    at = sorted(draw.randrange(len(body) + 1) for _ in lines)
    for place, line in reversed(list(zip(at, lines))):
        body.insert(place, line)
    return " ".join(body) + "\n\n" + ask, answer


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


def run(model, results, modes, lengths=(), needle_lengths=(), kinds=KINDS, count=50, greedy=(), most_texts=4, title_has=""):
    """lengths: (tokens, YaRN or None); greedy: (tokens, prompts, tokens to write)."""
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
        for kind in kinds:
            lines = [dict(zip(("prompt", "answer"), prompt(kind, tokens, i, filler))) for i in range(count)]
            text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
            about = {**program.about, "kind": "needles", "task": kind, "tokens": tokens}
            results.make(f"{name} needles {kind} {tokens} {count} {modes}", about,
                         lambda: program.run("needles", text, modes, 24))
    for tokens, prompts, steps in greedy:
        text = next(iter(all_texts.values()))
        about = {**program.about, "kind": "greedy", "tokens": tokens, "steps": steps}
        results.make(f"{name} greedy {tokens} {prompts} {steps} {modes}", about,
                     lambda: program.run("greedy", text, modes, tokens, prompts, steps))
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
        needles = [o for o in mine if o["kind"] == "needles"]
        if needles:
            modes = [m for m in needles[0]["results"][0] if m != "tokens"]
            print(f"\n| needles | tokens | {' | '.join(modes)} | of |\n|---|---|{'---|' * len(modes)}---|")
            for one in needles:
                right = " | ".join(str(sum(r[m] for r in one["results"])) for m in modes)
                print(f"| {one['task']} | {max(r['tokens'] for r in one['results'])} | {right} | {len(one['results'])} |")
        for one in (o for o in mine if o["kind"] == "greedy"):
            modes = [m for m in one["results"][0] if m != "prompt"]
            print(f"\nGreedy, prompts of {one['tokens']} tokens, {one['steps']} tokens written: tokens before the host's text is left\n")
            print(f"| mode | {' | '.join(str(r['prompt'] + 1) for r in one['results'])} |\n|---|{'---|' * len(one['results'])}")
            for m in modes:
                print(f"| {m} | {' | '.join(str(r[m]) for r in one['results'])} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("form", choices=["short", "long", "table", "texts"])
    parser.add_argument("model", nargs="?", metavar="MODEL or FOLDER")
    parser.add_argument("--results", default=CACHE / "quality.jsonl")
    parser.add_argument("--only", choices=["perplexity", "needles", "greedy"])
    parser.add_argument("--count", type=int, default=50, help="prompts of a kind and length")
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
        parser.error("a model is wanted")
    if options.form == "short":
        mine = run(options.model, results, "host,exact,auto:0.05", [(3072, None)], [2048], ["single"], 2, [(2304, 2, 8)], most_texts=1)
    else:
        asked = lambda what, all_of: all_of if options.only in (None, what) else []
        fits = lambda tokens: tokens <= options.longest
        lengths = [(n, y) for n, y in asked("perplexity", [(4096, None), (8192, None), (16384, 2)]) if fits(n)]
        # A prompt has about nine tenths of so many tokens, and below 2,048 all attention is exact.
        needle_lengths = [n for n in asked("needles", [2560, 4096, 8192]) if fits(n)]
        mine = run(options.model, results, MODES, lengths, needle_lengths, KINDS, options.count, asked("greedy", [(6144, 10, 128)]),
                   title_has=options.text)
    table(mine)
    for one in (o for o in mine if o["kind"] == "perplexity" and options.form == "short"):
        host, exact, fast = one["results"]
        wrong = [r["mode"] for r, most in ((exact, 0.001), (fast, 0.02)) if not math.isfinite(r["perplexity"]) or
                 abs(r["perplexity"] / host["perplexity"] - 1) > most]
        if wrong:
            sys.exit(f"perplexity of {', '.join(wrong)} is too far from the host's")


main()
