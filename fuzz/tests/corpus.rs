//! Every committed input once, on any compiler: `cargo test -p iceformer-fuzz`.

use std::path::Path;

fn every_input(target: &str, run: fn(&[u8])) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seen = 0;
    for folder in ["corpus", "regressions"] {
        let Ok(files) = std::fs::read_dir(root.join(folder).join(target)) else { continue };
        for file in files {
            let path = file.expect("readable").path();
            println!("{}", path.display());
            run(&std::fs::read(&path).expect("readable"));
            seen += 1;
        }
    }
    assert!(seen > 0, "no input of {target} is committed");
}

macro_rules! targets {
    ($($t:ident),*) => {$(
        #[test]
        fn $t() {
            every_input(stringify!($t), iceformer_fuzz::$t::run);
        }
    )*};
}

targets!(index, session, attention, border, load);
