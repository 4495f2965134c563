//! What trained heads have most of: a first key that takes what rows do not want to give to others, and words that come again.

use super::heads::{Bell, Heads, Shape, add, dot};
use iceformer_core::attention::Mode;
use iceformer_core::error::Result;

/// Share of a row's weight on the first key, about.
const SINK: f64 = 0.6;

/// Words that come again, and one in how many tokens is one of them.
const WORDS: usize = 4;
const BETWEEN: f64 = 60.0;

/// Heads with a sink, and where their words are.
pub struct Sunk {
    /// The heads.
    pub heads: Heads,
    /// For every KV head the word of every token, if it is one.
    pub words: Vec<Vec<Option<usize>>>,
    /// For every KV head the word that rows near every token look for.
    pub wanted: Vec<Vec<usize>>,
}

/// The part of `x` that is at right angles to a direction.
fn level(x: &mut [f32], direction: &[f32]) {
    add(x, -dot(x, direction), direction);
}

/// Keys have a large mean in common, and topics of 20 tokens or so. The first key is short and points away from that mean, and its
/// value is next to nothing; rows point away from the mean so far that this key takes about three fifths of their weight. One token
/// in 60 is one of four words, whose keys hardly differ wherever they stand; rows of a neighbourhood of a hundred or so all look for
/// the same one. The rest of the weight lies on topics.
///
/// # Errors
/// As `attention`, which says how much weight rows have to give.
pub fn sunk(shape: Shape, seed: u64) -> Result<Sunk> {
    const TOPICS: usize = 64;
    let (bell, d, group, root) = (&mut Bell::new(seed), shape.dim, shape.group(), shape.root());
    let mut heads = Heads::noise(shape, bell);
    let (mut words, mut wanted, mut means) = (Vec::new(), Vec::new(), Vec::new());
    for kv in 0..shape.heads_kv {
        let mean = bell.direction(d);
        let [centres, middles] = [(); 2].map(|()| bell.normals(TOPICS * d, 1.0));
        let marks: Vec<_> = (0..WORDS).map(|_| (bell.direction(d), bell.normals(d, 1.0))).collect();
        let (mut topic, mut near) = (0, 0);
        let (mut word_of, mut wanted_of) = (vec![None; shape.rows], vec![0; shape.rows]);
        for row in 0..shape.rows {
            if bell.chance(0.05) {
                topic = bell.below(TOPICS);
            }
            if bell.chance(1.0 / 128.0) {
                near = bell.below(WORDS);
            }
            let word = (row > 0 && bell.chance(1.0 / BETWEEN)).then(|| bell.below(WORDS));
            (word_of[row], wanted_of[row]) = (word, near);
            // Key and value: where they come from, and how far they scatter.
            let (toward, long, own, middle, spread) = match word {
                Some(w) => (&marks[w].0[..], root, 0.05, &marks[w].1[..], 0.3),
                None => (&centres[topic * d..][..d], 0.7, 0.7, &middles[topic * d..][..d], 0.5),
            };
            let key = heads.key(kv, row);
            key.iter_mut().for_each(|x| *x *= own);
            add(key, long, toward);
            level(key, &mean);
            let value = heads.value(kv, row);
            value.iter_mut().for_each(|x| *x *= spread);
            add(value, 1.0, middle);
            for head in kv * group..(kv + 1) * group {
                let asked = if bell.chance(0.5) { topic } else { bell.below(TOPICS) };
                let strength = 6.0 + 0.5 * bell.normal();
                let query = heads.query(head, row);
                query.iter_mut().for_each(|x| *x *= 0.4);
                // As strong in any dimension.
                add(query, 6.4 / root, &centres[asked * d..][..d]);
                add(query, strength, &marks[near].0);
                level(query, &mean);
            }
        }
        heads.key(kv, 0).fill(0.0);
        heads.value(kv, 0).iter_mut().for_each(|x| *x *= 0.01);
        words.push(word_of);
        wanted.push(wanted_of);
        means.push(mean);
    }
    // Without the mean the first key's logit is 0: what is left is the weight of all others.
    let (_, lse, _) = heads.attend(Mode::Exact, 0.0)?;
    let (long, short) = (0.6 * root, 0.15 * root);
    for (kv, mean) in means.iter().enumerate() {
        (0..shape.rows).for_each(|row| add(heads.key(kv, row), if row > 0 { long } else { -short }, mean));
        for head in kv * group..(kv + 1) * group {
            for row in 1..shape.rows {
                let others = f64::from(lse[head * shape.rows + row]).exp_m1().ln();
                let apart = others + (SINK / (1.0 - SINK)).ln() + 0.3 * f64::from(bell.normal());
                let away = apart as f32 * root / (long + short);
                add(heads.query(head, row), -away, mean);
            }
        }
    }
    Ok(Sunk { heads, words, wanted })
}
