//! What a part found, on its way into files.

use serde_json::Value;
use std::error::Error;
use std::path::Path;

/// One part of the report.
pub struct Part {
    /// Name of its files.
    pub name: &'static str,
    /// Title, tables and what to know about them.
    pub markdown: String,
    /// Every figure.
    pub json: Value,
    /// Drawings: name of the file without its end, SVG.
    pub drawings: Vec<(String, String)>,
}

impl Part {
    /// Writes `name.md`, `name.json` and the drawings into a folder, which is made where there is none. The drawings
    /// stand at the end of the Markdown.
    ///
    /// # Errors
    /// Of the file system.
    pub fn write(&self, folder: &Path) -> Result<(), Box<dyn Error>> {
        std::fs::create_dir_all(folder)?;
        let mut text = self.markdown.trim_end().to_string();
        for (name, svg) in &self.drawings {
            std::fs::write(folder.join(format!("{name}.svg")), svg)?;
            text += &format!("\n\n![{}]({name}.svg)", name.replace('-', " "));
        }
        std::fs::write(folder.join(format!("{}.md", self.name)), text + "\n")?;
        Ok(std::fs::write(folder.join(format!("{}.json", self.name)), format!("{:#}\n", self.json))?)
    }
}

/// A Markdown table.
pub fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut lines = vec![format!("| {} |", head.join(" | ")), format!("|{}", "---|".repeat(head.len()))];
    lines.extend(rows.into_iter().map(|r| format!("| {} |", r.join(" | "))));
    lines.join("\n")
}

/// Bytes as megabytes, two or three digits.
pub fn mb(bytes: usize) -> String {
    let x = bytes as f64 / 1e6;
    if x < 10.0 { format!("{x:.2}") } else { format!("{x:.0}") }
}

/// Seconds as milliseconds, three digits.
pub fn ms(seconds: f64) -> String {
    let x = seconds * 1e3;
    if x < 10.0 { format!("{x:.2}") } else { format!("{x:.0}") }
}
