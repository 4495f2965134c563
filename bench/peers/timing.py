"""Interleaved timing on one pinned core, with the core's own limits measured in the same rounds."""

import gc
import json
import os
import statistics
import subprocess
import time


def pin(core):
    """Ties this process, and what it starts, to one core; returns its number."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = max(os.sched_getaffinity(0)) if core is None else core
    os.sched_setaffinity(0, {core})
    return core


class Probe:
    """The program core_peak, asked for one figure at a time."""

    def __init__(self, path):
        self.path = str(path)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([self.path, "--serve"], stdin=pipe, stdout=pipe, text=True, bufsize=1)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def cpu(self):
        """CPU seconds of the program so far; always 0 where the system cannot say."""
        try:
            # The number that clock_getcpuclockid(3) gives on Linux.
            return time.clock_gettime((~self.process.pid << 3) | 2)
        except (AttributeError, OSError):
            return 0.0

    def report(self):
        return json.loads(subprocess.run([self.path], check=True, capture_output=True, text=True).stdout)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Fma:
    """A turn of the FMA probe: its figure is GFLOP/s."""

    def __init__(self, probe, isa):
        self.turn = lambda: {"figure": probe.ask(f"fma {isa}")}


class Read:
    """A turn of reading so many bytes in order; a pass that is not timed, then as many as take `least` seconds."""

    def __init__(self, probe, size, least=0.01):
        self.probe, self.size = probe, size
        self.ask(1)
        self.passes = int(least / self.ask(3)["wall"]) + 1

    def ask(self, passes):
        cpu = self.probe.cpu()
        wall = self.probe.ask(f"read {self.size} {passes}")
        cpu = self.probe.cpu() - cpu or wall
        return {"wall": wall / passes, "cpu": cpu / passes, "other": 0.0}

    def turn(self):
        self.ask(1)
        return self.ask(self.passes)


def seconds(call):
    t = time.perf_counter()
    call()
    return time.perf_counter() - t


class Timed:
    """A turn of a kernel: one call, or as many as take `least` seconds after one that is not timed."""

    def __init__(self, kernel, least=0.01):
        self.kernel = kernel
        t = seconds(kernel.call)
        if t < 0.5:
            t = seconds(kernel.call)
        self.calls = 1 if t > least else int(least / t) + 1

    def turn(self):
        if self.calls > 1:
            self.kernel.call()
        call, calls = self.kernel.call, range(self.calls)
        process, wall, cpu = time.process_time(), time.perf_counter(), time.thread_time()
        for _ in calls:
            call()
        cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
        # CPU time of threads that should not be there.
        other = time.process_time() - process - cpu
        return {"wall": wall / self.calls, "cpu": cpu / self.calls, "other": max(0.0, other) / self.calls}


def interleave(timed, rounds, budget):
    """Turns by name, A B C A B C ...; stops early after `budget` seconds and three rounds."""
    turns = {name: [] for name in timed}
    start = time.perf_counter()
    gc.collect()
    gc.disable()
    for done in range(rounds):
        if done >= 3 and time.perf_counter() - start > budget:
            break
        for name, t in timed.items():
            turns[name].append(t.turn())
    gc.enable()
    return turns


def median(turns, key="cpu"):
    return statistics.median(t[key] for t in turns)


def ratio(a, b, key="cpu"):
    """Median over the rounds of the time of `a` over that of `b` in the same round."""
    return statistics.median(x[key] / y[key] for x, y in zip(a, b))
