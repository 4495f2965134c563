//! Documentation that cannot go stale: every C and C++ snippet of `docs` compiles, and `docs/reference.md` is what the header
//! says. `ICE_BLESS=1` rewrites the reference.

#[path = "common/c.rs"]
mod c;
use c::{STRICT, folder, found, run};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Fenced blocks of one language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).map(|b| b.split("```").next().expect("one").to_string()).collect()
}

/// A snippet with a `main` is a program; others are the inside of a function.
fn source(snippet: &str, includes: &str) -> String {
    if snippet.contains("int main(") {
        return snippet.to_string();
    }
    format!("{includes}\nvoid snippet(void);\nvoid snippet(void) {{\n{snippet}\n}}\n")
}

#[test]
fn snippets_compile() {
    let docs = root().join("docs");
    let Ok(pages) = std::fs::read_dir(&docs) else {
        println!("SKIPPED: packaged without docs");
        return;
    };
    let dir = folder("docs");
    let mut seen = 0;
    for page in pages {
        let path = page.expect("readable").path();
        if path.extension().is_none_or(|e| e != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("text");
        let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
        // The reference declares it; the macro of that name in the header would get in the way.
        let c = "#include <iceformer.h>\n#undef ice_attention_stats_init\n#include <math.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>";
        let cpp = "#include <iceformer.hpp>\n#include <cstdio>\n#include <vector>";
        for (language, compiler, std, extension, includes) in
            [("c", "gcc", "-std=c11", "c", c), ("cpp", "g++", "-std=c++17", "cpp", cpp)]
        {
            for (i, snippet) in blocks(&text, language).iter().enumerate() {
                seen += 1;
                if !found(compiler) {
                    continue;
                }
                let file = dir.join(format!("{stem}{i}.{extension}"));
                std::fs::write(&file, source(snippet, includes)).expect("writable");
                let mut command = Command::new(compiler);
                command.arg(std).args(STRICT).arg("-Wno-unused-variable").arg("-I").arg(root().join("include"));
                run(command.arg("-fsyntax-only").arg(&file));
            }
        }
    }
    assert!(seen >= 8, "{seen} snippets: the pages or their fences changed");
}

/// The text of a run of `///` lines, as Markdown: parameters and labelled lines become a list.
fn prose(comment: &[&str]) -> String {
    let mut out = String::new();
    for line in comment {
        let line = line.trim_start_matches("///").trim();
        let label = ["@param", "Shapes:", "Errors:", "Ownership:", "Threads:"].iter().any(|l| line.starts_with(l));
        if line.starts_with("# Safety") {
            break;
        }
        match (line.is_empty(), label) {
            (true, _) => out.push_str("\n\n"),
            (_, true) => write!(out, "\n- {}", line.replacen("@param", "parameter", 1)).expect("a string"),
            _ if out.is_empty() || out.ends_with('\n') => out.push_str(line),
            _ => write!(out, "\n  {line}").expect("a string"),
        }
    }
    let text = out.trim();
    let mut tidy = String::new();
    for line in text.lines() {
        // Only continued list entries keep their indentation.
        let in_list = tidy.lines().last().is_some_and(|l: &str| l.starts_with("- ") || l.starts_with("  "));
        let line = if in_list { line } else { line.trim_start() };
        if !(line.is_empty() && tidy.ends_with("\n\n")) {
            tidy.push_str(line);
            tidy.push('\n');
        }
    }
    tidy
}

fn reference(header: &str) -> String {
    let lines: Vec<&str> = header.lines().collect();
    let (mut constants, mut types, mut structs, mut functions) =
        (String::new(), String::new(), String::new(), String::new());
    let mut i = 0;
    while i < lines.len() {
        let begin = i;
        while i < lines.len() && lines[i].starts_with("///") {
            i += 1;
        }
        let comment = &lines[begin..i];
        let Some(&line) = lines.get(i) else { break };
        i += 1;
        if comment.is_empty() {
            continue;
        }
        let text = prose(comment);
        if let Some(rest) = line.strip_prefix("#define ") {
            let (name, value) = rest.split_once(' ').expect("a value");
            writeln!(constants, "| `{name}` | {value} | {} |", text.trim().replace('\n', " ")).expect("a string");
        } else if line == "typedef struct {" {
            let mut rows = String::new();
            let mut about = Vec::new();
            while !lines[i].starts_with('}') {
                let field = lines[i].trim();
                if let Some(words) = field.strip_prefix("///") {
                    about.push(words.trim());
                } else {
                    writeln!(rows, "| `{}` | {} |", field.trim_end_matches(';'), about.join(" ")).expect("a string");
                    about.clear();
                }
                i += 1;
            }
            let name = lines[i].trim_matches(|c| c == '}' || c == ';' || c == ' ');
            write!(structs, "### {name}\n\n{text}\n| field | |\n|---|---|\n{rows}\n").expect("a string");
        } else if let Some(rest) = line.strip_prefix("typedef ") {
            let name = rest.trim_end_matches(';').rsplit(' ').next().expect("a name");
            let kind = rest.trim_end_matches(';').trim_end_matches(name).trim();
            writeln!(types, "| `{name}` | `{kind}` | {} |", text.trim().replace('\n', " ")).expect("a string");
        } else {
            let mut declaration = line.to_string();
            while !declaration.ends_with(';') {
                write!(declaration, "\n{}", lines[i]).expect("a string");
                i += 1;
            }
            let name = declaration.split('(').next().and_then(|d| d.rsplit([' ', '*']).next()).expect("a name");
            write!(functions, "### {name}\n\n```c\n{declaration}\n```\n\n{text}\n").expect("a string");
        }
    }
    format!(
        "# Reference\n\nMade from `include/iceformer.h` by `ICE_BLESS=1 cargo test -p iceformer-ffi --test docs`: do not edit. \
         The conventions that all\ncalls share stand at the head of that file.\n\n## Functions\n\n{functions}## \
         Structs\n\n{structs}## Types\n\n| name | | |\n|---|---|---|\n{types}\n## Constants\n\n| name | value | \
         |\n|---|---|---|\n{constants}"
    )
}

#[test]
fn reference_is_fresh() {
    let header = std::fs::read_to_string(root().join("include/iceformer.h")).expect("the header is there");
    let want = reference(&header);
    // Nothing is lost: every exported name has its heading.
    for name in include_str!("../abi/symbols.txt").lines() {
        assert!(want.contains(&format!("### {name}\n")), "{name} is missing");
    }
    let path = root().join("docs/reference.md");
    if std::env::var_os("ICE_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(&path, &want).expect("docs is writable");
    }
    let have = std::fs::read_to_string(&path).expect("docs/reference.md is there");
    assert!(have == want, "docs/reference.md is stale: ICE_BLESS=1 cargo test -p iceformer-ffi --test docs");
}
