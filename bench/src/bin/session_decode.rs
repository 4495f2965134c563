//! Decoding on captured heads: a session that keeps cells beside one that attends exactly, token by token.

use clap::Parser;
use iceformer_bench::heads::{self, Layer};
use iceformer_bench::place::Place;
use iceformer_bench::prefill::session;
use iceformer_core::attention::clustered::{SEGMENT, Scored, Watch};
use iceformer_core::attention::{Attend, Mode, Session};
use iceformer_core::mem::{Plan, Tensor, TensorMut};
use std::path::PathBuf;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The last tokens of captured heads, one by one: milliseconds a token, exact and with cells, and errors.
#[derive(Parser)]
struct Cli {
    /// Captured heads, safetensors [default: the heads bundled with the C examples]
    files: Vec<PathBuf>,
    /// Takes the files for one long text, one after the other, each with its own positions
    #[arg(long, requires = "files")]
    chain: bool,
    /// First rows of each file
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
    /// Gaussian noise of these lengths instead of files
    #[arg(long, value_delimiter = ',', conflicts_with = "files")]
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
}

impl Run {
    fn new(layer: &Layer, mode: Mode, tolerance: f32) -> Outcome<Run> {
        let session = session(layer, mode, tolerance)?;
        let mut plan = Plan::new();
        session.work_plan(1, &mut plan)?;
        let out = vec![0.0; layer.heads_q * layer.dim];
        let work = Place::new(&plan.finish()?);
        Ok(Run { session, work, out, attend: vec![], append: 0.0, prompt: 0.0, pairs: [0; 2] })
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
        self.session.attend(&Attend::new(q, &out), &memory)?;
        Ok(())
    }

    /// Attends the last token once more, to the same result.
    fn attend_watched(&mut self, layer: &Layer, at: usize, watch: Watch<'_>) -> Outcome<()> {
        let (d, q) = (layer.dim, queries(layer, at));
        let q = Tensor::new(&q, [1, layer.heads_q, 1, d])?;
        let out = TensorMut::new(&mut self.out, [1, layer.heads_q, 1, d])?;
        // SAFETY: the handle is gone at the end of the call.
        let memory = unsafe { self.work.lend()? };
        self.session.attend_watched(&Attend::new(q, &out), &memory, watch)?;
        Ok(())
    }

    fn step(&mut self, layer: &Layer, at: usize) -> Outcome<()> {
        self.append += self.append(layer, at, at + 1)?;
        let (d, q) = (layer.dim, queries(layer, at));
        let q = Tensor::new(&q, [1, layer.heads_q, 1, d])?;
        let out = TensorMut::new(&mut self.out, [1, layer.heads_q, 1, d])?;
        let start = Instant::now();
        // SAFETY: the handle is gone at the end of the step.
        let memory = unsafe { self.work.lend()? };
        let stats = self.session.attend(&Attend::new(q, &out), &memory)?;
        self.attend.push(start.elapsed().as_secs_f64());
        self.pairs[0] += stats.pairs;
        self.pairs[1] += stats.pairs_dense;
        Ok(())
    }
}

/// Queries of all heads for a token.
fn queries(layer: &Layer, at: usize) -> Vec<f32> {
    layer.q.chunks(layer.rows * layer.dim).flat_map(|x| x[at * layer.dim..][..layer.dim].iter().copied()).collect()
}

/// True weight from which on a key counts as heavy.
const HEAVY: f64 = 0.01;

/// Steps of which one is looked at for heavy keys.
const LOOK: usize = 16;

/// Heavy keys in cells, and those of them that were not scored by themselves.
#[derive(Default)]
struct Heavy {
    all: usize,
    lost: usize,
}

impl Heavy {
    /// Looks at the step of the last token, after which both attended it.
    fn look(&mut self, layer: &Layer, at: usize, [exact, run]: &mut [Run; 2]) -> Outcome<()> {
        let (d, scale) = (layer.dim, 1.0 / (layer.dim as f64).sqrt());
        let mut scored = vec![vec![false; at + 1]; layer.heads_q];
        run.attend_watched(layer, at, &mut |head, _, keys| match keys {
            Scored::All => scored[head].fill(true),
            Scored::Keys(ids) => ids.iter().for_each(|&id| scored[head][id as usize] = true),
        })?;
        for (head, scored) in scored.iter().enumerate() {
            // The bits of exact attention: this head was attended exactly.
            let whole = exact.out[head * d..][..d] == run.out[head * d..][..d];
            let q = &layer.q[(head * layer.rows + at) * d..][..d];
            let dot = |k: &[f32]| q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
            let logits: Vec<f64> = layer.keys(head).chunks(d).take(at + 1).map(|k| dot(k) * scale).collect();
            let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let least = HEAVY * logits.iter().map(|x| (x - top).exp()).sum::<f64>();
            // What is in cells that the row sees whole.
            for (x, scored) in logits.iter().zip(scored).take((at + 1) / SEGMENT * SEGMENT) {
                let heavy = (x - top).exp() >= least;
                self.all += usize::from(heavy);
                self.lost += usize::from(heavy && !scored && !whole);
            }
        }
        Ok(())
    }
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
        "{:<6} {:>7} {:>9} {:>9} {:>6} {:>8} {:>8} {:>7} {:>9} {:>9}",
        "layer", "tokens", "exact", "fast", "ratio", "error", "worst", "pairs", "prompt", "+cells"
    );
    let layers = match &cli.noise[..] {
        [] => {
            let files = if cli.files.is_empty() { vec![heads::bundled()] } else { cli.files };
            let parts = files.iter().map(|file| heads::load(file, cli.rows)).collect::<Result<Vec<_>, _>>()?;
            if cli.chain { heads::chain(parts)? } else { parts.into_iter().flatten().collect() }
        }
        lengths => lengths.iter().flat_map(|&rows| heads::noise(rows)).collect(),
    };
    let mut all = [0.0; 2];
    for layer in layers {
        let (begin, mut errors) = (layer.rows.saturating_sub(cli.steps), Vec::new());
        let mut heavy = Heavy::default();
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
            if cli.missed && (at - begin).is_multiple_of(LOOK) {
                heavy.look(&layer, at, &mut runs)?;
            }
            let [exact, fast] = &runs;
            let sum = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
                exact.out.iter().zip(&fast.out).map(|(&a, &b)| f(f64::from(a), f64::from(b))).sum()
            };
            errors.push((sum(&|a, b| (a - b) * (a - b)) / sum(&|a, _| a * a)).sqrt());
        }
        let [exact, fast] = &runs;
        let [slow, quick] = [exact, fast].map(|r| median(&r.attend) * 1e3);
        all = [all[0] + slow, all[1] + quick];
        let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
        println!(
            "{:<6} {:>7} {:>9.3} {:>9.3} {:>6.2} {:>8.4} {:>8.4} {:>7.4} {:>9.1} {:>9.1}",
            layer.number,
            layer.rows,
            slow,
            quick,
            slow / quick,
            mean,
            errors.iter().fold(0.0f64, |a, &b| a.max(b)),
            fast.pairs[0] as f64 / fast.pairs[1] as f64,
            exact.prompt * 1e3,
            fast.prompt * 1e3,
        );
        if cli.missed {
            println!("       heavy keys missed: {} of {}", heavy.lost, heavy.all);
        }
    }
    println!("{:<6} {:>7} {:>9.3} {:>9.3} {:>6.2}", "all", "", all[0], all[1], all[0] / all[1]);
    Ok(())
}
