//! What accelerated attention would be to a model, before anything is installed: which layers gain, by how much, at what error,
//! and what to set.

use clap::Parser;
use iceformer_bench::model::cli::{Common, Progress, Storage};
use iceformer_bench::model::{Choice, Kind, Model, perplexity, text};
use iceformer_bench::probe::advice::{self, Quality};
use iceformer_bench::probe::{Settings, measure, page};
use iceformer_core::attention::{AttentionOptions, Mode};
use iceformer_core::simd::Isa;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Says which layers of a Llama-architecture GGUF gain from accelerated attention on a text, at what error, and what to set.
/// Needs 4 bytes of memory for every weight of the model. Writes a page in Markdown and two charts.
#[derive(Parser)]
#[command(name = "iceformer-probe")]
struct Cli {
    /// Llama-architecture GGUF file with a byte-level BPE tokenizer
    model: PathBuf,
    /// Texts, one after another; FILE=TOKENS takes at most that many tokens of a file
    #[arg(required = true, value_name = "TEXT")]
    texts: Vec<String>,
    /// Tokens of the prompt, as many as the text has at most
    #[arg(short, value_name = "N", default_value_t = 8192)]
    n: usize,
    /// Tolerances to try
    #[arg(long, value_name = "X,..", value_delimiter = ',', default_values_t = [0.05, 0.02])]
    tolerance: Vec<f32>,
    /// Single tokens after the prompt
    #[arg(long, value_name = "N", default_value_t = 128)]
    steps: usize,
    /// Tokens of a batch
    #[arg(long, value_name = "N", default_value_t = 512)]
    batch: usize,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Storage of keys and values
    #[arg(long, value_enum, default_value = "f16")]
    kv: Storage,
    /// Rotary positions by YaRN for texts this many times longer than those of the training
    #[arg(long, value_name = "FACTOR")]
    yarn: Option<f64>,
    /// Leave perplexity out: half of the time, and a recommendation by the errors of rows alone
    #[arg(long)]
    no_perplexity: bool,
    /// Names of control tokens in texts stand for these tokens
    #[arg(long)]
    control: bool,
    /// Widest instruction set, such as avx2
    #[arg(long)]
    isa: Option<String>,
    /// Beginning of the names of the files to write: .md, -layers.svg, -length.svg
    #[arg(long, value_name = "PREFIX", default_value = "iceformer-probe")]
    out: PathBuf,
}

/// A bar on a terminal, lines elsewhere.
enum Shown {
    Bar(ProgressBar),
    Lines(&'static str, Progress),
}

impl Shown {
    fn new(what: &'static str, tokens: usize) -> Outcome<Shown> {
        if !std::io::stderr().is_terminal() {
            eprintln!("{what}: {tokens} tokens");
            return Ok(Shown::Lines(what, Progress::new(tokens)));
        }
        let style = ProgressStyle::with_template("{msg:12} {bar:40} {pos} of {len} tokens, {eta} left")?;
        let bar = ProgressBar::new(tokens as u64).with_style(style).with_message(what);
        bar.tick();
        Ok(Shown::Bar(bar))
    }

    fn at(&mut self, done: usize) {
        match self {
            Shown::Bar(bar) => bar.set_position(done as u64),
            Shown::Lines(_, progress) => progress.at(done),
        }
    }

    fn end(self) {
        match self {
            Shown::Bar(bar) => bar.finish(),
            Shown::Lines(what, _) => eprintln!("{what}: done"),
        }
    }
}

fn quality(
    model: &Model,
    tokens: &[u32],
    kind: &Kind,
    all: &[iceformer_bench::probe::Outcome],
) -> Outcome<Vec<Quality>> {
    let with = |mode, tolerance| AttentionOptions { mode, tolerance, ..kind.attention };
    let exact = Kind { attention: with(Mode::Exact, 0.0), ..*kind };
    let mut choices = vec![Choice { name: "exact".into(), kind: exact }];
    for o in all {
        let gain = advice::layers(o);
        let exact_layers = (0..o.layers.len().min(64)).filter(|l| !gain.contains(l)).fold(0, |bits, l| bits | 1 << l);
        let kind = Kind { attention: with(Mode::Auto, o.tolerance), exact_layers, ..*kind };
        choices.push(Choice { name: o.tolerance.to_string(), kind });
    }
    let mut shown = Shown::new("perplexity", tokens.len())?;
    let measured = perplexity::measure(model, &choices, tokens, |done| shown.at(done))?;
    shown.end();
    let of = |o: &perplexity::Outcome| Quality {
        perplexity: [measured[0].all(), o.all()],
        divergence: o.divergence(),
        same: o.same(),
    };
    Ok(measured[1..].iter().map(of).collect())
}

fn beside(prefix: &Path, end: &str) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn main() -> Outcome<()> {
    let cli = Cli::parse();
    if let Some(name) = &cli.isa {
        Isa::limit(Some(Isa::ALL.into_iter().find(|isa| isa.name() == name).ok_or("no such instruction set")?))?;
    }
    let common = Common {
        model: cli.model.clone(),
        kv: cli.kv,
        threads: cli.threads,
        chunk: cli.batch,
        yarn: cli.yarn,
        rope_linear: None,
        control: cli.control,
    };
    let model = common.load()?.ok_or("nothing to probe")?;
    let kind = common.kind();
    let tokens = text::at_most(&model.tokenizer, &cli.texts, cli.n + cli.steps)?;
    let prompt = tokens.len().saturating_sub(cli.steps);
    if prompt < 2560 {
        return Err(format!("the texts have {} tokens: too few to tell, 4,000 or more are needed", tokens.len()).into());
    }
    let settings = Settings { tolerances: cli.tolerance.clone(), mode: Mode::Auto, prompt };
    let mut shown = Shown::new("layers", tokens.len())?;
    let outcomes = measure(&model, &tokens, &kind, &settings, |done| shown.at(done))?;
    shown.end();
    let quality = if cli.no_perplexity { Vec::new() } else { quality(&model, &tokens[..prompt], &kind, &outcomes)? };
    let s = model.weights.shape;
    let texts: Vec<String> = cli.texts.iter().map(|t| name(Path::new(t))).collect();
    let about = page::About {
        model: name(&cli.model),
        texts: texts.join(", "),
        shape: [s.layers, s.heads_q, s.heads_kv, s.dim],
        tokens: [prompt, cli.batch, tokens.len() - prompt],
        kv: format!("{:?}", cli.kv).to_lowercase(),
        isa: Isa::best().name().into(),
        threads: kind.threads,
    };
    let files = ["-layers.svg", "-length.svg"].map(|end| beside(&cli.out, end));
    let charts = page::charts(&outcomes)?;
    for (file, chart) in files.iter().zip(&charts) {
        std::fs::write(file, chart).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    let names = files.each_ref().map(|f| name(f));
    let text = page::markdown(&about, &outcomes, &quality, [&names[0], &names[1]]);
    let file = beside(&cli.out, ".md");
    std::fs::write(&file, &text).map_err(|e| format!("{}: {e}", file.display()))?;
    print!("{text}");
    eprintln!("written: {}, {}, {}", file.display(), files[0].display(), files[1].display());
    Ok(())
}
