//! Files of the C border import one way.

#[path = "../../core/tests/common/arrows.rs"]
mod arrows;

use std::path::Path;

#[test]
fn files_point_down() {
    let files = [
        "types",
        "text",
        "cast",
        "guard",
        "alloc_hook",
        "memory",
        "status",
        "version",
        "overlap",
        "view",
        "attention",
        "object",
        "index",
        "scratch",
        "query",
        "saved",
        "session",
        "session_saved",
    ];
    arrows::point_down(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &files);
}
