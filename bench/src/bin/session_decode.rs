//! Decoding on captured heads: a session that keeps cells beside one that attends exactly, token by token.

use clap::Parser;
use iceformer_bench::heads::{self, Layer};
use iceformer_bench::place::Place;
use iceformer_bench::prefill::session;
use iceformer_core::attention::accelerated::Rule;
use iceformer_core::attention::{AttentionOptions, Mask, Mode, Problem, Session, attention_by_rule};
use iceformer_core::cells::SEGMENT;
use iceformer_core::mem::{Memory, Plan, Tensor, TensorMut};
use std::path::PathBuf;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The last tokens of captured heads, one by one: milliseconds a token, exact and with cells, and errors.
#[derive(Parser)]
struct Cli {
    /// Captured heads, safetensors [default: the heads bundled with the C examples]
    file: Option<PathBuf>,
    /// First rows of the file
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    rows: usize,
    /// Tokens decoded; those before are the prompt
    #[arg(long, default_value_t = 64)]
    steps: usize,
    /// Rows of the prompt that are attended before, as its last batch: what their trials find serves the tokens that follow
    #[arg(long, default_value_t = 512)]
    attended: usize,
    /// Tolerance
    #[arg(long, default_value_t = 0.05)]
    tolerance: f32,
    /// Gaussian noise of these lengths instead of a file
    #[arg(long, value_delimiter = ',')]
    noise: Vec<usize>,
    /// In auto mode, which attends exactly where cells do not pay, instead of with cells whatever they cost
    #[arg(long)]
    auto: bool,
    /// Count heavy keys (true weight of 1 % and more, in cells) that were not scored exactly
    #[arg(long)]
    missed: bool,
}

/// One session and what it cost.
struct Run {
    session: Session,
    work: Place,
    out: Vec<f32>,
    attend: Vec<f64>,
    append: f64,
    prompt: f64,
    pairs: [u64; 2],
    estimated: f64,
}

impl Run {
    fn new(layer: &Layer, mode: Mode, tolerance: f32) -> Outcome<Run> {
        let session = session(layer, mode, tolerance)?;
        let mut plan = Plan::new();
        session.work_plan(1, &mut plan)?;
        let out = vec![0.0; layer.heads_q * layer.dim];
        let work = Place::new(&plan.finish()?);
        Ok(Run { session, work, out, attend: vec![], append: 0.0, prompt: 0.0, pairs: [0; 2], estimated: 0.0 })
    }

    fn append(&mut self, layer: &Layer, begin: usize, end: usize) -> Outcome<f64> {
        let (d, heads) = (layer.dim, layer.heads_kv);
        let part = |x: &[f32]| -> Vec<f32> {
            x.chunks(layer.rows * d).flat_map(|x| x[begin * d..end * d].iter().copied()).collect()
        };
        let (k, v) = (part(&layer.k), part(&layer.v));
        let start = Instant::now();
        let shape = [1, heads, end - begin, d];
        self.session.append(Tensor::new(&k, shape)?, Tensor::new(&v, shape)?)?;
        self.session.commit()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Attends the last rows of the prompt that ends with token `end`.
    fn attend_prompt(&mut self, layer: &Layer, begin: usize, end: usize) -> Outcome<()> {
        let (d, rows) = (layer.dim, end - begin);
        let q: Vec<f32> = layer.q.chunks(layer.rows * d).flat_map(|x| x[begin * d..end * d].iter().copied()).collect();
        let q = Tensor::new(&q, [1, layer.heads_q, rows, d])?;
        let mut out = vec![0.0; layer.heads_q * rows * d];
        let out = TensorMut::new(&mut out, [1, layer.heads_q, rows, d])?;
        let mut plan = Plan::new();
        self.session.work_plan(rows, &mut plan)?;
        let mut work = Place::new(&plan.finish()?);
        // SAFETY: the handle is gone at the end of the call.
        let memory = unsafe { work.lend()? };
        self.session.attend(q, None, &out, None, &memory, 0, 1)?;
        Ok(())
    }

    fn step(&mut self, layer: &Layer, at: usize) -> Outcome<()> {
        self.append += self.append(layer, at, at + 1)?;
        let d = layer.dim;
        let q: Vec<f32> = layer.q.chunks(layer.rows * d).flat_map(|x| x[at * d..][..d].iter().copied()).collect();
        let q = Tensor::new(&q, [1, layer.heads_q, 1, d])?;
        let out = TensorMut::new(&mut self.out, [1, layer.heads_q, 1, d])?;
        let start = Instant::now();
        // SAFETY: the handle is gone at the end of the step.
        let memory = unsafe { self.work.lend()? };
        let stats = self.session.attend(q, None, &out, None, &memory, 0, 1)?;
        self.attend.push(start.elapsed().as_secs_f64());
        self.pairs[0] += stats.pairs;
        self.pairs[1] += stats.pairs_dense;
        self.estimated += f64::from(stats.estimated_mass);
        Ok(())
    }
}

/// True weight from which on a key counts as heavy.
const HEAVY: f64 = 0.01;

/// Pairs of rows that are looked at for heavy keys.
const PAIRS: usize = 16;

/// Heavy keys in cells of some of the last `steps` rows, and how many of them were not scored by themselves: two rows at a time,
/// against cells in the order of tokens, as a session has them. With thresholds as far eased as heads may ease them.
fn missed(layer: &Layer, steps: usize, tolerance: f32) -> Outcome<[usize; 2]> {
    let (d, n, scale) = (layer.dim, layer.rows, 1.0 / (layer.dim as f64).sqrt());
    let (mut heavy, mut lost) = (0, 0);
    for at in (n - steps.min(n - 2)..n - 1).step_by(steps.div_ceil(PAIRS).max(2)) {
        let seen = at + 2;
        let part = |x: &[f32], begin: usize| -> Vec<f32> {
            x.chunks(n * d).flat_map(|x| x[begin * d..seen * d].iter().copied()).collect()
        };
        let (q, k, v) = (part(&layer.q, at), part(&layer.k, 0), part(&layer.v, 0));
        let mut out = vec![0.0; q.len()];
        let shape = |heads: usize, rows: usize| [1, heads, rows, d];
        let p = Problem {
            q: Tensor::new(&q, shape(layer.heads_q, 2))?,
            k: Tensor::new(&k, shape(layer.heads_kv, seen))?,
            v: Tensor::new(&v, shape(layer.heads_kv, seen))?,
            out: TensorMut::new(&mut out, shape(layer.heads_q, 2))?,
            lse: None,
            bounds: None,
            mask: Mask::Causal { q_pos0: at as u64 },
            options: AttentionOptions { mode: Mode::Accelerated, tolerance, ..AttentionOptions::default() },
        };
        let mut scored = vec![vec![false; seen]; 2 * layer.heads_q];
        let mut watch = |head: usize, row: usize, ids: &[u32]| {
            ids.iter().for_each(|&id| scored[2 * head + row][id as usize] = true);
        };
        attention_by_rule(&p, &Rule::new(tolerance, false).eased(), Some(&mut watch), &Memory::system(0)?)?;
        for (i, scored) in scored.iter().enumerate() {
            let (head, row) = (i / 2, i % 2);
            let q = &q[(2 * head + row) * d..][..d];
            let keys = layer.keys(head).chunks(d).take(at + row + 1);
            let logits: Vec<f64> = keys
                .map(|k| q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() * scale)
                .collect();
            let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = logits.iter().map(|x| (x - top).exp()).sum();
            for (key, _) in logits.iter().enumerate().filter(|(_, x)| (*x - top).exp() >= HEAVY * sum) {
                // What is in cells that both rows see whole.
                if key < (at + 1) / SEGMENT * SEGMENT {
                    heavy += 1;
                    lost += usize::from(!scored[key]);
                }
            }
        }
    }
    Ok([lost, heavy])
}

fn median(x: &[f64]) -> f64 {
    let mut x = x.to_vec();
    x.sort_by(f64::total_cmp);
    x.get(x.len() / 2).copied().unwrap_or(0.0)
}

fn main() -> Outcome<()> {
    let cli = Cli::parse();
    println!("ms per token, all heads of a layer, keys and values in f16, one thread; prompt: appending it");
    println!(
        "{:<6} {:>7} {:>9} {:>9} {:>6} {:>8} {:>8} {:>7} {:>7} {:>9} {:>9}",
        "layer", "tokens", "exact", "fast", "ratio", "error", "worst", "pairs", "estim", "prompt", "+cells"
    );
    let layers = match &cli.noise[..] {
        [] => heads::load(&cli.file.unwrap_or_else(heads::bundled), cli.rows)?,
        lengths => lengths.iter().flat_map(|&rows| heads::noise(rows)).collect(),
    };
    for layer in layers {
        let (begin, mut errors) = (layer.rows.saturating_sub(cli.steps), Vec::new());
        let mode = if cli.auto { Mode::Auto } else { Mode::Accelerated };
        let mut runs = [Run::new(&layer, Mode::Exact, 0.0)?, Run::new(&layer, mode, cli.tolerance)?];
        for run in &mut runs {
            run.prompt = run.append(&layer, 0, begin)?;
        }
        let attended = cli.attended.min(begin);
        if attended > 0 {
            runs[1].attend_prompt(&layer, begin - attended, begin)?;
        }
        for at in begin..layer.rows {
            for run in &mut runs {
                run.step(&layer, at)?;
            }
            let [exact, fast] = &runs;
            let sum = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
                exact.out.iter().zip(&fast.out).map(|(&a, &b)| f(f64::from(a), f64::from(b))).sum()
            };
            errors.push((sum(&|a, b| (a - b) * (a - b)) / sum(&|a, _| a * a)).sqrt());
        }
        let [exact, fast] = &runs;
        let [slow, quick] = [exact, fast].map(|r| median(&r.attend) * 1e3);
        let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
        println!(
            "{:<6} {:>7} {:>9.3} {:>9.3} {:>6.2} {:>8.4} {:>8.4} {:>7.4} {:>7.4} {:>9.1} {:>9.1}",
            layer.number,
            layer.rows,
            slow,
            quick,
            slow / quick,
            mean,
            errors.iter().fold(0.0f64, |a, &b| a.max(b)),
            fast.pairs[0] as f64 / fast.pairs[1] as f64,
            fast.estimated / errors.len().max(1) as f64,
            exact.prompt * 1e3,
            fast.prompt * 1e3,
        );
        if cli.missed {
            let [lost, heavy] = missed(&layer, cli.steps, cli.tolerance)?;
            println!("       heavy keys missed: {lost} of {heavy}");
        }
    }
    Ok(())
}
