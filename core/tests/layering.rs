//! Layers point one way: a module imports only what stands before it in this list.

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

/// The files of accelerated attention: each imports only what stands before it.
const CLUSTERED: [&str; 15] = [
    "policy", "ablation", "split", "order", "tree", "rows", "sample", "front", "control", "memo", "estimate", "engine",
    "few", "runs", "call",
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
fn files_of_accelerated_attention_point_down() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/attention/clustered");
    let place = |file: &str| CLUSTERED.iter().position(|f| *f == file);
    let mut files = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if name == "mod" {
            continue;
        }
        let own = place(&name).unwrap_or_else(|| panic!("{name} has no place"));
        files += 1;
        let text = fs::read_to_string(&path).unwrap();
        for line in text.lines().filter(|l| !l.trim_start().starts_with("//")) {
            // Not what lies above: `super::super::`.
            for part in line.replace("super::super::", "").split("super::").skip(1) {
                let to: String = part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                // Siblings alone; `few` of all attention is imported from above.
                if let Some(to_place) = place(&to) {
                    assert!(to_place < own, "{}: {name} imports {to}", path.display());
                }
            }
        }
    }
    assert_eq!(files, CLUSTERED.len());
}
