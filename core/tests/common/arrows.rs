//! Imports between the files of a folder.

use std::fs;
use std::path::Path;

/// Holds files and folders of `src/folder` to their order: each imports only what stands before it in `files`, and all are there.
pub fn point_down(src: &Path, folder: &str, files: &[&str]) {
    let (dir, mut wrong, mut seen) = (src.join(folder), Vec::new(), 0);
    let handed_on = handed_on(&dir, files);
    let place = |file: &str| files.iter().position(|f| *f == file);
    let whole =
        format!("crate::{}", folder.split('/').filter(|f| !f.is_empty()).map(|f| format!("{f}::")).collect::<String>());
    for entry in fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        let own = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if own == "mod" || own == "lib" || own.ends_with("tests") {
            continue;
        }
        let own_place = place(&own).unwrap_or_else(|| panic!("{folder}/{own} has no place"));
        seen += 1;
        look(&path, 0, &mut |path, depth, code| {
            for from in [&"super::".repeat(depth + 1), &whole] {
                for name in imported(code, from) {
                    let to = handed_on.iter().find(|(of, _)| *of == name).map_or(&name, |(_, file)| file);
                    if place(to).is_some_and(|to| to > own_place) {
                        wrong.push(format!("{}: {own} imports {name} of {to}", path.display()));
                    }
                }
            }
        });
    }
    assert_eq!(seen, files.len(), "{folder}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A made-up folder: what is found in it, and in which form.
#[test]
fn imports_are_found() {
    let code = "use super::{a::{B, C}, d, E};\nuse super::super::f;\nuse crate::of::g::H;\nlet x = super::i(1);";
    // What lies above is no file.
    assert_eq!(imported(code, "super::"), ["a", "d", "E", "super", "i"]);
    assert_eq!(imported(code, "super::super::"), ["f"]);
    assert_eq!(imported(code, "crate::of::"), ["g"]);
}

/// Names that `mod.rs` or `lib.rs` of a folder hands on, with the file each comes from.
fn handed_on(dir: &Path, files: &[&str]) -> Vec<(String, String)> {
    let text = fs::read_to_string(dir.join("mod.rs")).or_else(|_| fs::read_to_string(dir.join("lib.rs"))).unwrap();
    let mut names = Vec::new();
    for of in text.split("use ").skip(1).filter_map(|of| of.split(';').next()) {
        let Some((file, list)) = of.split_once("::").filter(|(file, _)| files.contains(file)) else { continue };
        let list = list.trim_matches(|c| "{} \n".contains(c)).split(',');
        names.extend(list.map(|name| (ident(name.rsplit("::").next().unwrap()), file.to_owned())));
    }
    names
}

fn ident(text: &str) -> String {
    text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// First parts of what is imported by a path that begins with `from`, of braces too.
fn imported(text: &str, from: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in text.match_indices(from) {
        if text[..at].ends_with(|c: char| c.is_alphanumeric() || c == ':' || c == '_') {
            continue;
        }
        let rest = &text[at + from.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            names.push(ident(rest));
            continue;
        };
        let (mut depth, mut begin) = (0, 0);
        for (i, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                '}' | ',' if depth == 0 => {
                    names.push(ident(&list[begin..i]));
                    begin = i + 1;
                    if c == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
    }
    names
}

/// Looks at a file, or at all files of a folder, as part `own` of `dir`, `depth` folders below it.
fn look(path: &Path, depth: usize, see: &mut dyn FnMut(&Path, usize, &str)) {
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| look(&entry.unwrap().path(), depth + 1, see));
        return;
    }
    // Not what is there for tests, and not what is said.
    if path.file_stem().is_some_and(|stem| stem.to_str().unwrap().ends_with("tests")) {
        return;
    }
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("\nmod tests {").next().unwrap().lines().filter(|line| !line.trim_start().starts_with("//"));
    let depth = if path.ends_with("mod.rs") { depth - 1 } else { depth };
    see(path, depth, &code.collect::<Vec<_>>().join("\n"));
}
