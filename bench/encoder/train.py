"""Trains the encoders that `paper listops` and `paper opinions` classify with, on a CPU, within a time limit.

    paper=../../target/release/paper            # cargo build --release -p iceformer-bench --bin paper

ListOps:

    $paper listops-data --seed 1 --shortest 4 --longest 60 -n 60000 --out a.txt
    $paper listops-data --seed 2 --shortest 60 --longest 300 -n 30000 --out b.txt
    $paper listops-data --seed 3 --shortest 300 --longest 1000 -n 20000 --out c.txt
    $paper listops-data --seed 9 --shortest 500 --longest 2000 -n 200 --out test.txt
    python train.py listops a.txt b.txt c.txt --test test.txt --minutes 26

Opinions:

    $paper opinions-data --seed 1 --shortest 40 --longest 99 -n 120000 --out a.txt
    $paper opinions-data --seed 2 --shortest 100 --longest 199 -n 80000 --out b.txt
    $paper opinions-data --seed 3 --shortest 200 --longest 500 -n 40000 --out c.txt
    $paper opinions-data --seed 4 --shortest 500 --longest 1200 -n 20000 --out d.txt
    $paper opinions-data --seed 5 --shortest 1200 --longest 4000 -n 4000 --out e.txt
    $paper opinions-data --seed 9 --shortest 500 --longest 2000 -n 200 --out test.txt
    $paper opinions-data --seed 10 --shortest 2000 --longest 4000 -n 40 --out long.txt
    python train.py opinions a.txt b.txt b.txt c.txt d.txt e.txt --test test.txt long.txt --heads 4 --tokens 4000 --minutes 32

The files of `bench/data` were made so, on one thread of a machine that others used too: ListOps in 7,200 steps, 39.5 % of
the test lines right; opinions in 11,700 steps, 67 % of the shorter and 65 % of the longer test texts right. A limit in time
makes no two runs alike.

Lines are a label, a tab and one byte per token. Files are taken one after another: with each a share of the time is
spent mostly on its lengths, mixed with the earlier ones. The encoder: token embedding plus sinusoidal positions, layers
of attention and feed-forward behind layer norms, mean over the tokens, linear. Weights are written in f16. With
`--attention mean` or `nothing` every weight of attention is the same or there is none: what a task can do without.
"""

import argparse
import math
import random
import time

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

# Of each task its tokens, one byte each in the files, and how many labels there are.
TASKS = {"listops": (b"0123456789AIES]", 10), "opinions": (bytes(range(256)), 3)}


def read(path, letters):
    code = {c: i for i, c in enumerate(letters)}
    examples = []
    with open(path, "rb") as lines:
        for line in lines:
            label, text = line.rstrip(b"\n").split(b"\t")
            examples.append((int(label), torch.tensor([code[c] for c in text], dtype=torch.uint8)))
    return examples


def positions(n, width):
    """Row p: sin and cos of p / 10000^(2i / width), all sines first."""
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    angle = torch.arange(n)[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], 1)


class Layer(nn.Module):
    def __init__(self, width, inner, heads, attention):
        super().__init__()
        self.heads = heads
        self.attention = attention
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.inner_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x, keep):
        b, n, w = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.attention == "mean":
            q = torch.zeros_like(q)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        if self.attention != "nothing":
            x = x + self.out(a.transpose(1, 2).reshape(b, n, w))
        return x + self.down(F.relu(self.up(self.inner_norm(x))))


class Encoder(nn.Module):
    def __init__(self, tokens, classes, width, inner, heads, layers, attention):
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(tokens, width)
        self.layers = nn.ModuleList(Layer(width, inner, heads, attention) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.classify = nn.Linear(width, classes)
        nn.init.normal_(self.embedding.weight, std=0.5)

    def forward(self, tokens, lengths):
        n = tokens.shape[1]
        seen = torch.arange(n)[None, :] < lengths[:, None]
        keep = None if bool(seen.all()) else seen[:, None, None, :]
        x = self.embedding(tokens) + positions(n, self.width)
        for layer in self.layers:
            x = layer(x, keep)
        x = self.norm(x).masked_fill(~seen[:, :, None], 0).sum(1) / lengths[:, None]
        return self.classify(x)


def batch(examples):
    lengths = torch.tensor([len(t) for _, t in examples])
    tokens = nn.utils.rnn.pad_sequence([t for _, t in examples], batch_first=True).long()
    return tokens, lengths, torch.tensor([label for label, _ in examples])


def batches(examples, budget):
    """Examples of like lengths together, about `budget` tokens each, for ever."""
    while True:
        random.shuffle(examples)
        for part in range(0, len(examples), 1024):
            near = sorted(examples[part : part + 1024], key=lambda e: len(e[1]))
            groups, group = [], []
            for e in near:
                if group and len(e[1]) * (len(group) + 1) > budget:
                    groups.append(group)
                    group = []
                group.append(e)
            groups.append(group)
            random.shuffle(groups)
            yield from groups


def accuracy(model, examples):
    model.eval()
    right = 0
    with torch.no_grad():
        for e in examples:
            tokens, lengths, label = batch([e])
            right += int(model(tokens, lengths).argmax(1)[0] == label[0])
    model.train()
    return right / max(len(examples), 1)


def save(model, path, words):
    half = {k: v.to(torch.float16).contiguous() for k, v in model.state_dict().items()}
    save_file(half, path, {k: str(v) for k, v in words.items()})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--test", nargs="*", default=[])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--tokens", type=int, default=2000, help="tokens of a batch")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--inner", type=int, default=128)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--attention", choices=["softmax", "mean", "nothing"], default="softmax")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="weights [default: TASK-encoder.safetensors]")
    o = parser.parse_args()
    out = o.out or f"{o.task}-encoder.safetensors"
    random.seed(o.seed)
    torch.manual_seed(o.seed)
    letters, classes = TASKS[o.task]
    model = Encoder(len(letters), classes, o.width, o.inner, o.heads, o.layers, o.attention)
    words = {"heads": o.heads, "note": f"encoder of {o.task}, trained by bench/encoder/train.py"}
    print(sum(p.numel() for p in model.parameters()), "parameters", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=o.rate, weight_decay=0.01, betas=(0.9, 0.98))
    files = [batches(read(f, letters), o.tokens) for f in o.files]
    begin, step, told = time.time(), 0, 0.0
    loss_mean = right = seen = 0.0
    while (share := (time.time() - begin) / (60 * o.minutes)) < 1:
        rate = o.rate * min(1, (step + 1) / 200) * (1 - share)
        for group in optimizer.param_groups:
            group["lr"] = rate
        stage = min(int(share * len(files)), len(files) - 1)
        # Earlier files now and then, so that short lists stay known.
        pick = stage if random.random() < 0.75 else random.randrange(stage + 1)
        tokens, lengths, labels = batch(next(files[pick]))
        logits = model(tokens, lengths)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        loss_mean += float(loss.detach()) * len(labels)
        right += int((logits.argmax(1) == labels).sum())
        seen += len(labels)
        if time.time() - told > 30:
            told = time.time()
            line = f"{told - begin:6.0f} s, step {step}, stage {stage}: loss {loss_mean / seen:.3f}"
            print(line + f", right {right / seen:.3f}", flush=True)
            loss_mean = right = seen = 0.0
            save(model, out, words)
    save(model, out, words)
    for path in o.test:
        test = read(path, letters)
        print(f"{path}: {accuracy(model, test):.3f} of {len(test)} right", flush=True)


if __name__ == "__main__":
    main()
