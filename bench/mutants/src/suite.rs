//! The tests, one process each: how long they take, and which mutants they come by.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Tests of the sources rather than of what they do, or of programs built elsewhere.
const NOT_OF_USE: [&str; 9] =
    ["layering", "header_fresh", "docs", "links", "c_sample", "cpp_wrapper", "link_lines", "hosted", "abi"];
/// What holds bits rather than a property.
pub const OF_BITS: [&str; 2] = ["checksums", "vectors"];
/// Kibibytes of address space that a test may take.
const MEMORY: u64 = 12 << 20;
/// Seconds in which a test that does nothing is ended.
const IDLE: u64 = 90;

pub struct Test {
    /// Program and name, as `exact decode::rows`.
    pub name: String,
    program: PathBuf,
    folder: PathBuf,
    test: String,
    /// Of the processor, unmutated.
    pub seconds: f64,
    /// First mutants of the places it comes by.
    pub reached: BTreeSet<usize>,
}

impl Test {
    pub fn of_bits(&self) -> bool {
        OF_BITS.iter().any(|program| self.name.split(' ').next() == Some(program))
    }

    /// Runs with a variable set; whether it passed, and the seconds. Ends it after so many of the processor.
    fn run(&self, variable: (&str, &str), most: f64) -> (bool, f64) {
        let limits = format!("ulimit -t {} -v {MEMORY}; exec \"$0\" \"$@\"", most.ceil() as u64);
        let begun = Instant::now();
        let mut child = Command::new("sh")
            .args(["-c", &limits])
            .arg(&self.program)
            .args(["--exact", &self.test, "--test-threads=1", "-q", "--include-ignored"])
            .env(variable.0, variable.1)
            .env("RUST_BACKTRACE", "0")
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh");
        let mut pause = 1;
        loop {
            if let Some(status) = child.try_wait().expect("wait") {
                return (status.success(), begun.elapsed().as_secs_f64());
            }
            if begun.elapsed() > Duration::from_secs(IDLE + 8 * most as u64) {
                let _ = child.kill();
                let _ = child.wait();
                return (false, begun.elapsed().as_secs_f64());
            }
            std::thread::sleep(Duration::from_millis(pause));
            pause = (pause * 2).min(20);
        }
    }

    /// Whether the test fails, or does not end, with a mutant on.
    pub fn kills(&self, mutant: usize) -> bool {
        !self.run(("ICE_MUTANT", &mutant.to_string()), 8.0 * self.seconds + 5.0).0
    }
}

/// Builds the tests of a tree and lists them.
fn list(tree: &Path) -> Vec<Test> {
    let mut tests = Vec::new();
    for package in ["core", "ffi"] {
        let folder = tree.join(package);
        let names = fs::read_dir(folder.join("tests")).expect("tests");
        let names = names.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.extension().is_some_and(|x| x == "rs"));
        let mut names: Vec<String> = names.map(|p| p.file_stem().unwrap().to_string_lossy().into_owned()).collect();
        names.retain(|name| !NOT_OF_USE.contains(&name.as_str()));
        let output = Command::new("cargo")
            .args(["test", "-q", "--no-run", "--message-format=json", "-p", &format!("iceformer-{package}"), "--lib"])
            .args(names.iter().flat_map(|name| ["--test", name]))
            .current_dir(tree)
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo");
        assert!(output.status.success(), "the tests do not build");
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(built) = serde_json::from_str::<Value>(line) else { continue };
            let (Some(program), Some(name)) = (built["executable"].as_str(), built["target"]["name"].as_str()) else {
                continue;
            };
            let listed = Command::new(program).args(["--list", "--format", "terse"]).output().expect(program);
            for test in String::from_utf8_lossy(&listed.stdout).lines().filter_map(|l| l.strip_suffix(": test")) {
                tests.push(Test {
                    name: format!("{name} {test}"),
                    program: program.into(),
                    folder: folder.clone(),
                    test: test.to_string(),
                    seconds: 0.0,
                    reached: BTreeSet::new(),
                });
            }
        }
    }
    tests
}

/// Builds the tests, runs each once unmutated and once to note what it comes by. Those that fail unmutated are named and left out.
pub fn measured(tree: &Path, notes: &Path) -> Vec<Test> {
    let mut tests = list(tree);
    fs::create_dir_all(notes).expect("notes");
    tests.retain_mut(|test| {
        let path = notes.join(test.name.replace([' ', ':'], "_"));
        let seconds = path.with_extension("seconds");
        let known = fs::read_to_string(&seconds).ok().and_then(|s| s.parse().ok());
        // A build is newer than what was noted of the one before.
        let modified = |p: &Path| fs::metadata(p).and_then(|m| m.modified()).ok();
        let known = known.filter(|_| modified(&seconds) > modified(&test.program));
        test.seconds = known.unwrap_or_else(|| {
            let _ = fs::remove_file(&path);
            let (noted, _) = test.run(("ICE_REACHED", &path.to_string_lossy()), 600.0);
            let (passed, seconds) = test.run(("ICE_MUTANT", "4000000000"), 600.0);
            if noted && passed { seconds } else { f64::INFINITY }
        });
        fs::write(&seconds, test.seconds.to_string()).expect("seconds");
        let reached = fs::read_to_string(&path).unwrap_or_default();
        test.reached = reached.lines().filter_map(|l| l.parse().ok()).collect();
        if test.seconds.is_infinite() {
            eprintln!("fails unmutated: {}", test.name);
        }
        test.seconds.is_finite()
    });
    tests
}
