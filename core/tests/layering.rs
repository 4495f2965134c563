//! Layers point one way: a module imports only what stands before it in this list.

#[path = "common/arrows.rs"]
mod arrows;

use std::fs;
use std::path::Path;

const LAYERS: [&[&str]; 9] = [
    &["error", "math"],
    &["features"],
    &["mem"],
    &["bytes", "simd"],
    &["project"],
    &["idmap", "list", "queue", "seen"],
    &["dci"],
    &["attention"],
    &["lib"],
];

/// Files and folders of a folder: each imports only what stands before it.
const FOLDERS: [(&str, &[&str]); 6] = [
    (
        "attention",
        &[
            "mode",
            "measured",
            "mask",
            "clock",
            "softmax",
            "tunables",
            "stats",
            "parts",
            "store",
            "options",
            "dense",
            "problem",
            "certificates",
            "retrieve",
            "clustered",
            "head_topk",
            "probe",
            "index_room",
            "over_index",
            "call",
            "session_options",
            "cache",
            "session",
            "session_save",
        ],
    ),
    ("attention/dense", &["tunables", "head", "spans", "fixed", "panel", "work", "blocks", "decode", "exact", "heads"]),
    (
        "attention/clustered",
        &[
            "policy", "ablation", "split", "order", "tree", "rows", "sample", "front", "control", "memo", "estimate",
            "engine", "clusters", "decode", "runs", "call",
        ],
    ),
    (
        "simd",
        &[
            "tunables",
            "vector",
            "math",
            "element",
            "scalar",
            "aarch64",
            "x86_64",
            "detect",
            "rows",
            "kernels",
            "tile",
            "online",
            "decode",
            "bias",
            "fixed",
            "gather",
            "clustered",
            "opened",
            "codes",
        ],
    ),
    (
        "dci",
        &[
            "tunables",
            "level",
            "slots",
            "lists",
            "params",
            "chunk",
            "codes",
            "index",
            "batch",
            "structure",
            "change",
            "scratch",
            "search",
            "gather",
            "query",
            "save",
        ],
    ),
    ("dci/codes", &["basis", "effort", "order", "build", "fitted", "search", "curve"]),
];

fn layer(module: &str) -> usize {
    LAYERS.iter().position(|l| l.contains(&module)).unwrap_or_else(|| panic!("{module} has no layer"))
}

fn visit(dir: &Path, module: Option<&str>, files: &mut usize) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let module = module.unwrap_or(&name);
        if path.is_dir() {
            visit(&path, Some(module), files);
            continue;
        }
        *files += 1;
        let text = fs::read_to_string(&path).unwrap();
        for line in text.lines().filter(|l| !l.trim_start().starts_with("//")) {
            for part in line.split("crate::").skip(1) {
                let to: String = part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if to.is_empty() || to == module || to == "VERSION" {
                    continue;
                }
                assert!(layer(&to) < layer(module), "{}: {module} imports {to}", path.display());
            }
        }
    }
}

#[test]
fn imports_point_down() {
    let mut files = 0;
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), None, &mut files);
    assert!(files > 40, "the walk saw the sources");
}

#[test]
fn files_of_a_folder_point_down() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    FOLDERS.iter().for_each(|(folder, files)| arrows::point_down(&src, folder, files));
}
