//! Numbers that begin where a cache line does, as the tensors of frameworks do.

use std::ops::Deref;

/// Elements of a cache line.
const LINE: usize = 16;

/// Numbers that begin where a cache line does.
#[derive(Debug)]
pub struct Aligned {
    /// Never grows after it was filled, so that nothing in it moves.
    room: Vec<f32>,
    begin: usize,
}

impl From<Vec<f32>> for Aligned {
    fn from(numbers: Vec<f32>) -> Self {
        let mut room: Vec<f32> = Vec::with_capacity(numbers.len() + LINE);
        let begin = room.as_ptr().align_offset(LINE * 4);
        room.resize(begin, 0.0);
        room.extend(numbers);
        Aligned { room, begin }
    }
}

impl FromIterator<f32> for Aligned {
    fn from_iter<I: IntoIterator<Item = f32>>(numbers: I) -> Self {
        numbers.into_iter().collect::<Vec<f32>>().into()
    }
}

impl Deref for Aligned {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.room[self.begin..]
    }
}

#[cfg(test)]
mod tests {
    use super::Aligned;

    #[test]
    fn the_first_number_begins_a_line() {
        for n in [0, 1, 15, 16, 1000, 100_000] {
            let numbers: Aligned = (0..n).map(|i| i as f32).collect();
            assert_eq!(numbers.as_ptr() as usize % 64, 0);
            assert_eq!(numbers.len(), n);
            assert!(numbers.iter().enumerate().all(|(i, &x)| x == i as f32));
        }
    }
}
