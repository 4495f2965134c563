#!/usr/bin/env python3
"""The bill of materials of the C library, as CycloneDX 1.5: iceformer-ffi and every crate that it links.

    .ci/bom.py OUT [TARGET]     for the Rust target named, by default for all targets

From `cargo metadata` and Cargo.lock; crates of builds and tests alone are left out. The same commit gives the same bytes.
"""

import json
import pathlib
import re
import subprocess
import sys
from datetime import datetime, timezone
from os import environ

ROOT = pathlib.Path(__file__).resolve().parent.parent
CRATE = "iceformer-ffi"


def linked(nodes, start):
    """Ids of what a crate links, itself first, and what each of them links."""
    edges, waiting = {}, [start]
    while waiting:
        at = waiting.pop()
        if at not in edges:
            normal = [d["pkg"] for d in nodes[at]["deps"] if any(k["kind"] is None for k in d["dep_kinds"])]
            edges[at] = sorted(normal)
            waiting += normal
    return edges


def component(package, checksums, kind):
    """A crate as CycloneDX names it."""
    name, version = package["name"], package["version"]
    url = f"pkg:cargo/{name}@{version}"
    made = {"type": kind, "bom-ref": url, "name": name, "version": version, "description": package["description"], "purl": url}
    if package["license"]:
        made["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if (name, version) in checksums:
        made["hashes"] = [{"alg": "SHA-256", "content": checksums[name, version]}]
    if package["repository"]:
        made["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return {key: value for key, value in made.items() if value}


def main(out, target=None):
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    command += ["--filter-platform", target] if target else []
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    packages = {p["id"]: p for p in metadata["packages"]}
    locked = re.compile(r'name = "(.+)"\nversion = "(.+)"\nsource = .+\nchecksum = "(.+)"')
    checksums = {found[:2]: found[2] for found in locked.findall((ROOT / "Cargo.lock").read_text())}
    start = next(id for id, p in packages.items() if p["name"] == CRATE)
    edges = linked({n["id"]: n for n in metadata["resolve"]["nodes"]}, start)
    parts = {id: component(packages[id], checksums, "library") for id in edges}
    commit = environ.get("SOURCE_DATE_EPOCH") or subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(int(commit), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": parts.pop(start),
        },
        "components": sorted(parts.values(), key=lambda c: c["bom-ref"]),
        "dependencies": sorted(
            (
                {"ref": f"pkg:cargo/{packages[id]['name']}@{packages[id]['version']}"}
                | ({"dependsOn": [f"pkg:cargo/{packages[d]['name']}@{packages[d]['version']}" for d in to]} if to else {})
                for id, to in edges.items()
            ),
            key=lambda d: d["ref"],
        ),
    }
    names = {c["name"] for c in bom["components"]}
    if "iceformer-core" not in names or names & {"cbindgen", "proptest", "criterion"}:
        sys.exit(f"failed: the bill of materials does not list what is in the library: {sorted(names)}")
    pathlib.Path(out).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(out).write_text(json.dumps(bom, indent=2) + "\n")
    print(f"{out}: {len(names)} crates")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
