//! How many cells a query looks into and how many keys it scores exactly, and what it would have taken to find a neighbour.

/// Work of one query: cells looked into, and keys scored exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::dci) struct Effort {
    /// 0: every key is scored exactly.
    pub probe: u32,
    /// Most of them.
    pub keep: u32,
    /// Of them, in the order of their codes: how many in a row may turn out to be no answers before the rest are let be.
    pub patience: u32,
}

impl Effort {
    /// Every key.
    pub const EXACT: Effort = Effort { probe: 0, keep: 0, patience: 0 };

    /// The effort for so many times the neighbours.
    pub fn times(self, times: usize) -> Effort {
        let of = |x: u32| (x as usize).saturating_mul(times).min(u32::MAX as usize) as u32;
        Effort { probe: self.probe, keep: of(self.keep), patience: of(self.patience) }
    }
}

/// Of a true neighbour: cells that come before its own, and keys whose codes score better.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::dci) struct Found {
    pub cells: u32,
    pub codes: u32,
}
