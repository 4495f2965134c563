//! Exact and accelerated attention by name, side by side.

use super::{Kind, Result, Run, Weights};
use iceformer_core::Status;
use iceformer_core::attention::{AttentionOptions, Mode};

/// One column of a comparison.
#[derive(Clone, Debug)]
pub struct Choice {
    /// For tables.
    pub name: String,
    /// How it is run.
    pub kind: Kind,
}

/// Exact, and accelerated with each tolerance. What this version does not have is named on standard output and left out.
///
/// # Errors
/// Options that are wrong, not merely absent.
pub fn choices(weights: &Weights, kind: &Kind, tolerances: &[f32]) -> Result<Vec<Choice>> {
    let with = |mode, tolerance| {
        let attention = AttentionOptions { mode, tolerance, ..kind.attention };
        Kind { attention, ..*kind }
    };
    let mut all = vec![Choice { name: "exact".into(), kind: with(Mode::Exact, 0.0) }];
    for &t in tolerances {
        let choice = Choice { name: format!("tolerance {t}"), kind: with(Mode::Accelerated, t) };
        match Run::new(weights, 1, &choice.kind) {
            Ok(_) => all.push(choice),
            Err(e) => match e.downcast_ref::<iceformer_core::Error>() {
                Some(e) if e.status == Status::Unsupported => println!("{}: left out: {e}", choice.name),
                _ => return Err(e),
            },
        }
    }
    Ok(all)
}
