//! What other programs depend on: exported names, layouts, versions. `ICE_BLESS=1` rewrites the two lists in `ffi/abi`.

use iceformer::*;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fmt::Write;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "common/c.rs"]
mod c;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn header() -> String {
    std::fs::read_to_string(root().join("../include/iceformer.h")).expect("include/iceformer.h is there")
}

/// Compares a list with the committed one, or rewrites that.
fn committed(file: &str, have: &str) {
    let path = root().join("abi").join(file);
    if std::env::var_os("ICE_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(&path, have).expect("ffi/abi is writable");
    }
    let want = std::fs::read_to_string(&path).expect("the list is there");
    assert_eq!(have, want, "ffi/abi/{file} differs: the ABI changed");
}

/// Functions the header declares.
fn declared() -> BTreeSet<String> {
    let text = header();
    let lines = text.lines().filter(|l| !l.starts_with([' ', '/', '#', '}', '*']) && !l.starts_with("typedef"));
    lines
        .filter_map(|l| l.split_once('('))
        .filter_map(|(before, _)| before.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("ice_"))
        .map(String::from)
        .collect()
}

#[test]
fn the_header_declares_the_committed_names() {
    let list = declared().into_iter().collect::<Vec<_>>().join("\n") + "\n";
    assert!(list.lines().count() > 50);
    committed("symbols.txt", &list);
}

#[test]
#[cfg(target_os = "linux")]
fn the_shared_library_exports_exactly_those() {
    if Command::new("nm").arg("--version").output().is_err() {
        println!("SKIPPED: no nm on this machine");
        return;
    }
    let library = c::staticlib().with_file_name("libiceformer.so");
    let nm = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output();
    let nm = String::from_utf8(nm.expect("nm runs").stdout).expect("text");
    let exported: BTreeSet<String> = nm
        .lines()
        .filter_map(|l| l.rsplit(' ').next())
        // What the compiler's runtime exports is not ours.
        .filter(|s| *s != "rust_eh_personality")
        .map(String::from)
        .collect();
    assert_eq!(exported, declared());
    // The loader finds it by a name that tells its ABI; cargo-c is told the same.
    let soname = format!("libiceformer.so.{}", ice_abi_version());
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("readable");
    assert!(
        manifest.contains(&format!("\nversion = \"{}.0.0\"\n", ice_abi_version())),
        "package.metadata.capi.library"
    );
    let Ok(out) = Command::new("readelf").arg("-d").arg(&library).output() else {
        println!("SKIPPED: no readelf on this machine");
        return;
    };
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains(&format!("[{soname}]")), "{soname} is not the soname:\n{text}");
}

macro_rules! layout {
    ($out:ident, $($t:ident { $($f:ident),* $(,)? })*) => {$(
        writeln!($out, "{} size {} align {}", stringify!($t), size_of::<$t>(), align_of::<$t>()).expect("a string");
        $(writeln!($out, "  {} {}", stringify!($f), offset_of!($t, $f)).expect("a string");)*
    )*};
}

#[test]
#[cfg(target_pointer_width = "64")]
fn layouts_are_the_committed_ones() {
    let mut out = String::from("# sizes, alignments and offsets in bytes on 64-bit targets\n");
    layout! { out,
        ice_error { struct_size, status, message }
        ice_allocator { struct_size, user, alloc, free }
        ice_load_options { struct_size, reserved, data, len, read, user, memory_limit, allocator }
        ice_memory { struct_size, used, reserved, peak, limit }
        ice_index_options {
            struct_size, dim, metric, num_simple, num_composite, levels, promotion, directions, seed, capacity,
            memory_limit, max_norm, flags, allocator, engine, reserved,
        }
        ice_query_options {
            struct_size, k, visit, retrieve, visit_fraction, retrieve_fraction, field_of_view, target_recall, id_begin,
            id_end, engine, flags, filter, filter_len,
        }
        ice_neighbor { id, score }
        ice_tensor { data, dtype, row_stride, head_stride, batch_stride }
        ice_tensor_mut { data, dtype, row_stride, head_stride, batch_stride }
        ice_mask {
            struct_size, kind, q_pos0, prefix, prefix_len, keys, keys_len, bias, bias_heads, bias_batch, reserved,
        }
        ice_attention_options {
            struct_size, mode, tolerance, top_k, scale, softcap, window, sinks, seed, num_threads, levels, num_simple,
            num_composite, field_of_view, retrieve_fraction, flags, reserved,
        }
        ice_attention_desc {
            struct_size, batch, heads_q, heads_kv, dim_k, dim_v, rows_q, rows_kv, q, k, v, out, lse, mask, options,
            bounds,
        }
        ice_attention_stats {
            struct_size, mode, reason, estimated_mass, certified_error, score_error, pairs, pairs_dense, cells_opened,
            build_seconds, attend_seconds, rows, certified_mean, certificates, certified, rows_measured, rows_exact,
            rows_short, rows_strict, rows_costly, known_pairs, measured_error, measured_p95, measured_worst,
        }
        ice_session_options {
            struct_size, heads_q, heads_kv, dim_k, dim_v, kv_dtype, capacity, dense_below, memory_limit, allocator,
            attention,
        }
    }
    committed("layout.txt", &out);
    same_in_c(&out);
}

/// Holds the same figures against the C compiler's view of the header.
fn same_in_c(layout: &str) {
    if Command::new("gcc").arg("--version").output().is_err() {
        println!("SKIPPED: no gcc on this machine");
        return;
    }
    let mut source = String::from("#include <iceformer.h>\n#include <stddef.h>\n");
    let mut check = |what: String, value: &str| {
        let n = source.lines().count();
        writeln!(source, "typedef char check_{n}[{what} == {value} ? 1 : -1];").expect("a string");
    };
    let mut current = "";
    for line in layout.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [name, "size", size, "align", _] => {
                current = name;
                check(format!("sizeof({name})"), size);
            }
            [field, offset] => check(format!("offsetof({current}, {field})"), offset),
            _ => panic!("{line}"),
        }
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("layout.c");
    std::fs::write(&file, source).expect("writable");
    let mut c = Command::new("gcc");
    c.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I"]);
    let out = c.arg(root().join("../include")).arg(&file).output().expect("gcc runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Value of a macro of the header.
fn defined(name: &str) -> String {
    let text = header();
    let prefix = format!("#define {name} ");
    let line = text.lines().find(|l| l.starts_with(&prefix)).unwrap_or_else(|| panic!("{name} is not defined"));
    line[prefix.len()..].to_string()
}

#[test]
fn versions_agree() {
    let part = |name| defined(name).parse::<u32>().expect("a number");
    let [major, minor, patch] = ["ICE_VERSION_MAJOR", "ICE_VERSION_MINOR", "ICE_VERSION_PATCH"].map(part);
    assert_eq!(format!("{major}.{minor}.{patch}"), env!("CARGO_PKG_VERSION"));
    assert_eq!(defined("ICE_VERSION_STRING"), format!("\"{}\"", env!("CARGO_PKG_VERSION")));
    assert_eq!(
        defined("ICE_VERSION_NUMBER"),
        "(ICE_VERSION_MAJOR * 10000 + ICE_VERSION_MINOR * 100 + ICE_VERSION_PATCH)"
    );
    assert_eq!(ice_version_number(), major * 10000 + minor * 100 + patch);
    // SAFETY: static text.
    let text = unsafe { CStr::from_ptr(ice_version_string()) };
    assert_eq!(text.to_str(), Ok(env!("CARGO_PKG_VERSION")));
    assert_eq!(ice_abi_version(), part("ICE_ABI_VERSION"));
}

#[test]
fn init_functions_fill_in_their_size() {
    macro_rules! sizes {
        ($($t:ident: $init:ident($($arg:expr),*)),* $(,)?) => {$({
            let mut x = std::mem::MaybeUninit::<$t>::zeroed();
            // SAFETY: writable for the struct; all-zero and what init writes are both valid.
            let x = unsafe {
                $init(x.as_mut_ptr() $(, $arg)*);
                x.assume_init()
            };
            assert_eq!(x.struct_size as usize, size_of::<$t>(), stringify!($t));
        })*};
    }
    sizes! {
        ice_error: ice_error_init(),
        ice_allocator: ice_allocator_init(),
        ice_memory: ice_memory_init(),
        ice_load_options: ice_load_options_init(),
        ice_index_options: ice_index_options_init(4),
        ice_query_options: ice_query_options_init(4),
        ice_mask: ice_mask_init(),
        ice_attention_options: ice_attention_options_init(),
        ice_attention_desc: ice_attention_desc_init(),
        ice_attention_stats: ice_attention_stats_init_sized(size_of::<ice_attention_stats>()),
        ice_session_options: ice_session_options_init(),
    }
}

/// What `init` writes over bytes of 0xaa, as (struct_size, bytes changed at the front).
fn written(init: impl Fn(*mut ice_attention_stats)) -> (u32, usize) {
    let mut room = [0xaa_aa_aa_aa_aa_aa_aa_aa_u64; 64];
    init(room.as_mut_ptr().cast());
    let bytes: Vec<u8> = room.iter().flat_map(|w| w.to_ne_bytes()).collect();
    let size = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    (size, bytes.iter().rposition(|&b| b != 0xaa).map_or(0, |i| i + 1))
}

#[test]
fn init_functions_keep_within_the_struct_of_their_callers() {
    // A program of version 0.1 has the struct up to `certified`: nothing beyond is touched.
    let first = offset_of!(ice_attention_stats, rows_measured);
    // SAFETY: more room than any version of the struct takes.
    assert_eq!(written(|p| unsafe { ice_attention_stats_init(p) }), (first as u32, first));
    // SAFETY: as above, for every size.
    let sized = |n: usize| written(|p| unsafe { ice_attention_stats_init_sized(p, n) });
    let known = size_of::<ice_attention_stats>();
    for n in (first..=known).step_by(8) {
        assert_eq!(sized(n), (n as u32, n));
    }
    // A newer header's struct: as much as is known. Half a field, or less than in any version: none of it.
    assert_eq!(sized(known + 40), (known as u32, known));
    assert_eq!(sized(first + 4), (first as u32, first));
    assert_eq!(sized(first - 8), (0, 4));
    assert_eq!(sized(3), (0xaa_aa_aa_aa, 0));
}
