//! The committed header is what cbindgen makes of the sources. `ICE_BLESS=1` rewrites it.

use std::path::Path;

fn generated(root: &Path) -> String {
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let bindings = cbindgen::Builder::new().with_crate(root).with_config(config).generate().expect("the sources parse");
    let mut text = Vec::new();
    bindings.write(&mut text);
    String::from_utf8(text).expect("a header is text")
}

/// First line that differs, for the message.
fn difference(a: &str, b: &str) -> Option<String> {
    if a == b {
        return None;
    }
    let at = a.lines().zip(b.lines()).take_while(|(x, y)| x == y).count();
    let line = |s: &str| s.lines().nth(at).unwrap_or("<end of file>").to_string();
    Some(format!("line {}:\n  header:    {}\n  generated: {}", at + 1, line(a), line(b)))
}

#[test]
fn header_is_fresh() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = root.join("../include/iceformer.h");
    let want = generated(root);
    if std::env::var_os("ICE_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(&header, &want).expect("the header is writable");
    }
    let have = std::fs::read_to_string(&header).expect("include/iceformer.h is there");
    if let Some(d) = difference(&have, &want) {
        panic!("include/iceformer.h is stale; ICE_BLESS=1 cargo test -p iceformer-ffi --test header_fresh\n{d}");
    }
}

#[test]
fn a_changed_header_is_noticed() {
    let want = generated(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(want.contains("ice_index_query(") && want.contains("#define ICE_ERR_INTERNAL"));
    for stale in [want.replacen("size_t", "int", 1), format!("{want}\n"), want[..want.len() - 1].to_string()] {
        assert!(difference(&stale, &want).is_some());
    }
}
