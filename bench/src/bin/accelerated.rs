//! Accelerated attention beside exact attention on captured heads.

use iceformer_bench::accelerated::{Outcome, study};
use iceformer_bench::heads;
use iceformer_core::attention::accelerated::Rule;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (mut path, mut rows, mut samples, mut rounds, mut tol, mut auto) =
        (heads::bundled(), usize::MAX, 16, 3, 0.05, false);
    let mut set: Vec<(String, f32)> = Vec::new();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--rows" => rows = value()?.parse()?,
            "--samples" => samples = value()?.parse()?,
            "--rounds" => rounds = value()?.parse()?,
            "--tolerance" => tol = value()?.parse()?,
            "--auto" => auto = true,
            "--set" => {
                let v = value()?;
                let (k, v) = v.split_once('=').ok_or("k=v")?;
                set.push((k.into(), v.parse()?));
            }
            _ => path = PathBuf::from(&arg),
        }
    }
    let layers = if path.as_os_str() == "noise" { heads::noise(rows.min(8192)) } else { heads::load(&path, rows)? };
    let mut rule = Rule { error: f32::INFINITY, ..Rule::new(tol, false) };
    for (k, v) in set {
        match k.as_str() {
            "needle" => rule.needle = v,
            "stand" => rule.stand_out = v,
            "standn" => rule.stand_out_node = v,
            "margin" => rule.margin = v,
            "out" => rule.outstanding = v,
            "coarse" => rule.coarse = v,
            "cell" => rule.cell = v,
            "node" => rule.node = v,
            "fine" => rule.fine = v,
            _ => return Err(k.into()),
        }
    }
    println!("{rule:?}");
    println!(
        "{:<6} {:>8} {:>8} {:>6} {:>7} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7}",
        "layer", "exact", "fast", "ratio", "build", "error", "p99", "missed", "pairs", "cells", "estim"
    );
    let mut all = Outcome::default();
    let show = |name: &str, o: &Outcome| {
        println!(
            "{name:<6} {:>8.1} {:>8.1} {:>6.2} {:>7.2} {:>8.4} {:>8.4} {:>8.4} {:>7.4} {:>7.4} {:>7.4}",
            o.exact * 1e3,
            o.accelerated * 1e3,
            o.exact / o.accelerated,
            o.build * 1e3,
            o.mean(),
            o.p99(),
            o.missed as f64 / (o.heavy as f64).max(1.0),
            o.pairs as f64 / o.pairs_dense as f64,
            o.cells as f64 * 16.0 / o.pairs_dense as f64,
            o.estimated / o.rows.max(1) as f64,
        );
    };
    for layer in &layers {
        let o = study(layer, tol, if auto { None } else { Some(&rule) }, samples, rounds);
        show(&layer.number.to_string(), &o);
        all.add(&o);
    }
    show("all", &all);
    Ok(())
}
