//! Prompts with answers, and documents as tokens.

use super::{Result, Tokenizer};
use std::path::{Path, PathBuf};

/// One line-retrieval prompt.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// What the model reads.
    pub text: String,
    /// What it must write next.
    pub answer: String,
    /// Tokens of the text with the one that begins it, as the file says.
    pub tokens: usize,
}

/// Prompts of a `.jsonl` file: objects with `prompt`, `answer`, `n_tokens`.
///
/// # Errors
/// What cannot be read, with the line.
pub fn prompts(path: &Path) -> Result<Vec<Prompt>> {
    let all = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let one = |(i, line): (usize, &str)| {
        let v: serde_json::Value = serde_json::from_str(line)?;
        let word = |key: &str| v[key].as_str().map(String::from);
        let tokens = v["n_tokens"].as_u64().map_or(0, |n| n as usize);
        let prompt = word("prompt").zip(word("answer")).map(|(text, answer)| Prompt { text, answer, tokens });
        prompt.ok_or_else(|| format!("{}:{}: no prompt with an answer", path.display(), i + 1).into())
    };
    all.lines().enumerate().filter(|l| !l.1.trim().is_empty()).map(one).collect()
}

/// `n` of `all`, evenly spread: the middle one of each share.
pub fn spread<T>(all: &[T], n: usize) -> Vec<&T> {
    let n = n.min(all.len());
    (0..n).map(|i| &all[(2 * i + 1) * all.len() / (2 * n)]).collect()
}

/// Tokens of files one after another, the beginning token first, cut to `n`. `FILE=TOKENS` takes at most that many of a
/// file; a `.jsonl` file gives its prompts with their answers.
///
/// # Errors
/// Unreadable files; fewer than `n` tokens.
pub fn document(tokenizer: &Tokenizer, files: &[String], n: usize) -> Result<Vec<u32>> {
    let out = at_most(tokenizer, files, n)?;
    if out.len() < n { Err(format!("the files have {} tokens, {n} are asked for", out.len()).into()) } else { Ok(out) }
}

/// As [`document`], fewer where the files have no more.
///
/// # Errors
/// Unreadable files.
pub fn at_most(tokenizer: &Tokenizer, files: &[String], n: usize) -> Result<Vec<u32>> {
    let mut out = tokenizer.start();
    for file in files {
        let (path, most) = match file.rsplit_once('=') {
            Some((path, most)) => (path, most.parse().map_err(|_| format!("{file}: no number of tokens"))?),
            None => (file.as_str(), usize::MAX),
        };
        let room = most.min(n.saturating_sub(out.len()));
        let path = Path::new(path);
        let mut part = Vec::new();
        if path.extension().is_some_and(|e| e == "jsonl") {
            for p in prompts(path)? {
                if part.len() >= room {
                    break;
                }
                part.extend(tokenizer.encode(&format!("{}{}>\n\n", p.text, p.answer)));
            }
        } else {
            let text = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
            part = tokenizer.encode(&String::from_utf8_lossy(&text));
        }
        out.extend(part.into_iter().take(room));
    }
    out.truncate(n);
    Ok(out)
}

/// Files as they are; folders become their `lines-*.jsonl`, the smallest first. A folder that is not there has none.
///
/// # Errors
/// Folders that cannot be read.
pub fn prompt_files(paths: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    for path in paths {
        if path.extension().is_some() {
            out.push(path);
        } else if path.exists() {
            let mut found = Vec::new();
            for entry in std::fs::read_dir(&path)? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with("lines-") && name.ends_with(".jsonl") {
                    found.push((entry.metadata()?.len(), entry.path()));
                }
            }
            found.sort();
            out.extend(found.into_iter().map(|f| f.1));
        }
    }
    Ok(out)
}
