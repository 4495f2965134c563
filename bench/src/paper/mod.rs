//! The evaluation of the IceFormer paper on what runs here: one part a file, each of which measures, and says what it
//! found as Markdown, JSON and a drawing.

pub mod approximation;
pub mod classification;
pub mod listops;
pub mod opinions;
pub mod report;
pub mod scaling;
