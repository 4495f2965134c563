//! Even draws from a seed.

/// SplitMix64: the same seed gives the same numbers.
pub struct Draw {
    state: u64,
}

impl Draw {
    /// A stream of its own.
    pub fn new(seed: u64) -> Draw {
        Draw { state: seed }
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, evenly but for a bias of n / 2^64.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// One of them.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_even_and_repeat() {
        let (mut draw, mut counts) = (Draw::new(5), [0; 7]);
        (0..70_000).for_each(|_| counts[draw.below(7)] += 1);
        counts.iter().for_each(|&c| assert!((9_600..10_400).contains(&c), "{counts:?}"));
        let of = |seed| {
            let mut draw = Draw::new(seed);
            [draw.bits(), draw.bits()]
        };
        assert_eq!(of(3), of(3));
        assert_ne!(of(3), of(4));
        assert!((0..50).all(|_| [2, 5].contains(&draw.pick(&[2, 5]))));
    }
}
