//! The tables and figures of the IceFormer paper, on what runs here.

use clap::{Args, Parser, Subcommand};
use iceformer_bench::heads;
use iceformer_bench::long_range::encoder::Encoder;
use iceformer_bench::long_range::{Task, listops as lists, opinions as texts};
use iceformer_bench::model::cli::Common;
use iceformer_bench::model::{shared, text};
use iceformer_bench::paper::report::Part;
use iceformer_bench::paper::{approximation, classification, listops, opinions, scaling};
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Regenerates the tables and figures of the paper's evaluation into a folder; without a command, all of them. Everything
/// runs on one thread: pin it to one core. What is not there (captures, a model, prompts beside the checkout) is named
/// and left out.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Small sizes, in a minute or two
    #[arg(long, global = true)]
    short: bool,
    /// Folder for tables, figures and numbers
    #[arg(long, global = true, value_name = "FOLDER", default_value_os_t = Path::new(env!("CARGO_MANIFEST_DIR")).join("report"))]
    out: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Error and time of every method on captured heads
    Approximation(Approximation),
    /// Attention time and line-retrieval accuracy against the length of a prompt, and which layers are sparse
    Scaling(Scaling),
    /// A small encoder classifies ListOps with each method in place of its attention
    Listops(Classify),
    /// The same on generated texts, read byte by byte
    Opinions(Classify),
    /// Writes ListOps examples: a label, a tab, one character per token
    ListopsData(Data),
    /// Writes texts: a label, a tab, the text
    OpinionsData(Data),
}

#[derive(Args)]
struct Approximation {
    /// Captured heads, safetensors [default: those beside the checkout, or bundled with the C examples]
    files: Vec<PathBuf>,
    /// Heads of each layer, evenly spread [default: all; short: 1]
    #[arg(long, value_name = "N")]
    heads: Option<usize>,
    /// First tokens of each file [default: all; short: 1024]
    #[arg(long, value_name = "N")]
    rows: Option<usize>,
    /// Rounds of turns; medians count
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds: usize,
}

#[derive(Args)]
struct Scaling {
    #[command(flatten)]
    common: Common,
    /// Prompts of each length [default: 16; short: 2]
    #[arg(long, value_name = "N")]
    prompts: Option<usize>,
    /// Tokens of the longest prompts [default: 16500; short: 2500]
    #[arg(long, value_name = "N")]
    longest: Option<usize>,
    /// Tolerance of accelerated attention
    #[arg(long, default_value_t = 0.05)]
    tolerance: f32,
}

#[derive(Args)]
struct Classify {
    /// Weights [default: those that come with the repository]
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Examples of 500 to 2,000 tokens; of 2,000 to 4,000 a fifth as many [default: 200; short: 8 of 200 to 400]
    #[arg(short, long, value_name = "N")]
    n: Option<usize>,
}

#[derive(Args)]
struct Data {
    /// Same seed, same examples
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Tokens at least
    #[arg(long, default_value_t = 500)]
    shortest: usize,
    /// Tokens at most
    #[arg(long, default_value_t = 2000)]
    longest: usize,
    /// Examples
    #[arg(short, long, default_value_t = 200)]
    n: usize,
    /// File
    #[arg(long)]
    out: PathBuf,
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn approximation(cli: &Cli, o: &Approximation) -> Result<(), Box<dyn Error>> {
    let mut files = o.files.clone();
    if files.is_empty() && !cli.short {
        let captures = ["ice-tiny-8k-f16", "minilm-encoder-8k-f16"];
        files = captures.iter().map(|f| shared(&format!("data/qkv/{f}.safetensors"))).filter(|f| f.exists()).collect();
    }
    if files.is_empty() {
        files = vec![heads::bundled()];
    }
    let (rows, most) = (o.rows.unwrap_or(short(cli, 1024, usize::MAX)), o.heads.unwrap_or(short(cli, 1, usize::MAX)));
    let rounds = o.rounds;
    let mut tables = Vec::new();
    for file in &files {
        let layers = heads::load(file, rows)?;
        tables.extend(approximation::measure(&name(file), &layers, most, rounds, &mut |what| eprintln!("{what}")));
    }
    finish(cli, &approximation::part(&tables, rounds)?)
}

fn scaling(cli: &Cli, o: &Scaling) -> Result<(), Box<dyn Error>> {
    let Some(model) = o.common.load()? else { return Ok(()) };
    let (most, longest) = (o.prompts.unwrap_or(short(cli, 2, 16)), o.longest.unwrap_or(short(cli, 2500, 16500)));
    let mut files = Vec::new();
    for file in text::prompt_files(vec![shared("data/longeval")])? {
        let prompts = text::prompts(&file)?;
        if prompts.iter().all(|p| p.tokens <= longest) {
            files.push(prompts);
        }
    }
    // Long enough that the k heaviest keys are few, short enough to be quick.
    let Some(prompt) = files.get(files.len().saturating_sub(1).min(2)).and_then(|p| p.first()) else {
        println!("skipped: no prompts beside the checkout");
        return Ok(());
    };
    let kind = o.common.kind();
    let found = scaling::probe(&model, &kind, prompt)?;
    let choices = scaling::choices(&model, &kind, o.tolerance, &found)?;
    let mut lengths = Vec::new();
    for prompts in &files {
        lengths.push(scaling::measure(&model, &choices, prompts, most)?);
        eprintln!("prompts of {} tokens", lengths[lengths.len() - 1].tokens);
    }
    finish(cli, &scaling::part(&name(&o.common.model), &found, &choices, &lengths)?)
}

/// Loads a task's encoder and classifies examples of short and of long sequences.
fn classify(
    cli: &Cli,
    o: &Classify,
    task: &Task,
    page: &classification::Page,
    measure: impl Fn(&Encoder, (usize, usize), usize, &mut dyn FnMut(&str)) -> classification::Set,
) -> Result<(), Box<dyn Error>> {
    let encoder = Encoder::load(&o.weights.clone().unwrap_or_else(|| task.bundled()), task)?;
    let n = o.n.unwrap_or(short(cli, 8, 200));
    let sets = if cli.short { vec![((200, 400), n)] } else { vec![((500, 2000), n), ((2000, 4000), n.div_ceil(5))] };
    let each = |&(lengths, n): &_| measure(&encoder, lengths, n, &mut |what| eprintln!("{}, {what}", page.title));
    finish(cli, &classification::part(page, &sets.iter().map(each).collect::<Vec<_>>())?)
}

fn short<T>(cli: &Cli, short: T, long: T) -> T {
    if cli.short { short } else { long }
}

fn finish(cli: &Cli, part: &Part) -> Result<(), Box<dyn Error>> {
    println!("{}", part.markdown);
    part.write(&cli.out)
}

fn listops_data(o: &Data) -> Result<(), Box<dyn Error>> {
    let examples = lists::generate::Generator::new(o.seed, o.shortest, o.longest);
    write(o, examples.map(|e| (e.label, lists::vocabulary::letters(&e.tokens))))
}

fn opinions_data(o: &Data) -> Result<(), Box<dyn Error>> {
    let examples = texts::generate::Generator::new(o.seed, o.shortest, o.longest);
    write(o, examples.map(|e| (e.label, String::from_utf8_lossy(&e.tokens).into_owned())))
}

fn write(o: &Data, examples: impl Iterator<Item = (u8, String)>) -> Result<(), Box<dyn Error>> {
    let mut text = String::new();
    for (label, tokens) in examples.take(o.n) {
        writeln!(text, "{label}\t{tokens}")?;
    }
    Ok(std::fs::write(&o.out, text)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    run(&Cli::parse())
}

fn run(cli: &Cli) -> Result<(), Box<dyn Error>> {
    match &cli.command {
        Some(Command::Approximation(o)) => approximation(cli, o),
        Some(Command::ListopsData(o)) => listops_data(o),
        Some(Command::OpinionsData(o)) => opinions_data(o),
        Some(Command::Scaling(o)) => scaling(cli, o),
        Some(Command::Listops(o)) => classify(cli, o, &lists::TASK, &listops::PAGE, listops::measure),
        Some(Command::Opinions(o)) => classify(cli, o, &texts::TASK, &opinions::PAGE, opinions::measure),
        None => {
            // Each command with its defaults, as if given by name.
            for part in ["approximation", "scaling", "listops", "opinions"] {
                let mut words = vec!["paper".into(), part.into(), "--out".into(), cli.out.clone().into_os_string()];
                if cli.short {
                    words.push("--short".into());
                }
                run(&Cli::parse_from(words))?;
            }
            Ok(())
        }
    }
}
