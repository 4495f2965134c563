//! The same model in f64, the whole text at once, one loop per formula.

use crate::tiny::*;

type Rows = Vec<Vec<f64>>;

/// `[layer][q, k, v][head][row][dim]` and the logits of every row.
pub struct Answer {
    pub heads: Vec<[Vec<Rows>; 3]>,
    pub logits: Rows,
}

fn times(x: &Rows, w: &[f32]) -> Rows {
    let dot = |row: &[f64], w: &[f32]| row.iter().zip(w).map(|(a, b)| a * f64::from(*b)).sum::<f64>();
    x.iter().map(|row| w.chunks(row.len()).map(|w| dot(row, w)).collect()).collect()
}

fn norm(x: &Rows, w: &[f32]) -> Rows {
    let one = |row: &Vec<f64>| {
        let square = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
        row.iter().zip(w).map(|(x, w)| x / (square + EPSILON).sqrt() * f64::from(*w)).collect()
    };
    x.iter().map(one).collect()
}

fn plus(x: &mut Rows, y: &Rows) {
    x.iter_mut().zip(y).for_each(|(x, y)| x.iter_mut().zip(y).for_each(|(x, y)| *x += y));
}

/// Rows of all heads to heads of rows, turned by position where `turn` says so.
fn split(x: &Rows, turn: bool) -> Vec<Rows> {
    let one = |h: usize, at: usize, row: &[f64]| -> Vec<f64> {
        let mut part = row[h * DIM..][..DIM].to_vec();
        for i in (0..DIM).step_by(2).filter(|_| turn) {
            let angle = at as f64 / BASE.powf(i as f64 / DIM as f64);
            let (a, b) = (part[i], part[i + 1]);
            part[i] = a * angle.cos() - b * angle.sin();
            part[i + 1] = a * angle.sin() + b * angle.cos();
        }
        part
    };
    (0..x[0].len() / DIM).map(|h| x.iter().enumerate().map(|(at, row)| one(h, at, row)).collect()).collect()
}

fn attention(q: &[Rows], k: &[Rows], v: &[Rows], rows: usize) -> Rows {
    let mut out = vec![Vec::new(); rows];
    for (h, q) in q.iter().enumerate() {
        let (k, v) = (&k[h / (HEADS_Q / HEADS_KV)], &v[h / (HEADS_Q / HEADS_KV)]);
        for (i, out) in out.iter_mut().enumerate() {
            let logit = |j: usize| q[i].iter().zip(&k[j]).map(|(a, b)| a * b).sum::<f64>() / (DIM as f64).sqrt();
            let weights: Vec<f64> = (0..=i).map(|j| logit(j).exp()).collect();
            let total: f64 = weights.iter().sum();
            out.extend((0..DIM).map(|c| weights.iter().zip(v).map(|(w, v)| w * v[c]).sum::<f64>() / total));
        }
    }
    out
}

pub fn run(tiny: &Tiny, tokens: &[u32]) -> Answer {
    let t = tiny.tensor();
    let row = |id: &u32| t["token_embd.weight"][*id as usize * WIDTH..][..WIDTH].iter().map(|&x| x.into()).collect();
    let mut x: Rows = tokens.iter().map(row).collect();
    let mut heads = Vec::new();
    for l in 0..LAYERS {
        let w = |name: &str| t[format!("blk.{l}.{name}.weight").as_str()];
        let h = norm(&x, w("attn_norm"));
        let q = split(&times(&h, w("attn_q")), true);
        let k = split(&times(&h, w("attn_k")), true);
        let v = split(&times(&h, w("attn_v")), false);
        plus(&mut x, &times(&attention(&q, &k, &v, tokens.len()), w("attn_output")));
        heads.push([q, k, v]);
        let h = norm(&x, w("ffn_norm"));
        let (mut gate, up) = (times(&h, w("ffn_gate")), times(&h, w("ffn_up")));
        for (g, u) in gate.iter_mut().zip(&up) {
            g.iter_mut().zip(u).for_each(|(g, u)| *g = *g / (1.0 + (-*g).exp()) * u);
        }
        plus(&mut x, &times(&gate, w("ffn_down")));
    }
    let head = t.get("output.weight").unwrap_or(&t["token_embd.weight"]);
    Answer { heads, logits: times(&norm(&x, t["output_norm.weight"]), head) }
}
