//! Made-up heads, each hard for approximations in a way of its own. A seed gives the same numbers on every machine but for the
//! last bits of sines and logarithms.

mod heads;
mod sunk;

pub use heads::{Bell, Heads, Shape};
use heads::{add, dot};
pub use sunk::{Sunk, sunk};

/// A kind of heads by name.
pub struct Family {
    /// Name.
    pub name: &'static str,
    make: fn(Shape, &mut Bell) -> Heads,
}

impl Family {
    /// Heads of this kind.
    pub fn heads(&self, shape: Shape, seed: u64) -> Heads {
        (self.make)(shape, &mut Bell::new(seed))
    }
}

const fn family(name: &'static str, make: fn(Shape, &mut Bell) -> Heads) -> Family {
    Family { name, make }
}

/// All kinds: 25, of which four come in two forms.
pub const FAMILIES: [Family; 29] = [
    family("noise", Heads::noise),
    family("topics", |s, bell| topics(s, bell, Topics { queries: 1.2, ..TOPICS })),
    family("topics, sharp", |s, bell| topics(s, bell, Topics { queries: 2.5, count: 256, ..TOPICS })),
    family("needle pairs", |s, bell| needle_pairs(s, bell, |_| true)),
    family("needle pairs, rare", |s, bell| needle_pairs(s, bell, |row| row % 64 == 37)),
    family("one needle", |s, bell| one_needle(s, bell, |_| true)),
    family("one needle, rare", |s, bell| one_needle(s, bell, |row| row % 97 == 13)),
    family("huge norms", huge_norms),
    family("huge values", huge_values),
    family("outlier dimensions", outlier_dimensions),
    family("outlier signs", outlier_signs),
    family("sink", |s, bell| sink(s, bell, 1.0)),
    family("sink of no value", |s, bell| sink(s, bell, 0.01)),
    family("first key of 1,000", first_key),
    family("heavy-tailed values", heavy_tailed_values),
    family("heavy-tailed rows", heavy_tailed_rows),
    family("shift", shift),
    family("passages", passages),
    family("equal keys", equal_keys),
    family("one-hot", one_hot),
    family("one-hot, rare", one_hot_rare),
    family("rotated", |s, bell| rotated(s, bell, 0.6)),
    family("rotated, flat", |s, bell| rotated(s, bell, 0.1)),
    family("logits of 30", |s, bell| scaled_queries(s, bell, 30.0)),
    family("logits of 300", |s, bell| scaled_queries(s, bell, 300.0)),
    family("values that cancel", cancelling_values),
    family("products of keys", products_of_keys),
    family("split topics", split_topics),
    family("late needles", late_needles),
];

/// How keys, queries and values follow topics.
#[derive(Clone, Copy)]
struct Topics {
    count: usize,
    keys: f32,
    queries: f32,
    values: f32,
}

const TOPICS: Topics = Topics { count: 64, keys: 1.0, queries: 1.0, values: 0.5 };

/// Text that stays with a topic for 20 tokens or so. Half of the rows ask for their own topic, the others for any.
fn topics(shape: Shape, bell: &mut Bell, of: Topics) -> Heads {
    let (d, group) = (shape.dim, shape.group());
    let mut heads = Heads::noise(shape, bell);
    for kv in 0..shape.heads_kv {
        let [centres, means] = [(); 2].map(|()| bell.normals(of.count * d, 1.0));
        let centre = |topic: usize| &centres[topic * d..][..d];
        let mut topic = 0;
        for row in 0..shape.rows {
            if bell.chance(0.05) {
                topic = bell.below(of.count);
            }
            let key = heads.key(kv, row);
            key.iter_mut().for_each(|x| *x *= 0.7);
            add(key, of.keys, centre(topic));
            let value = heads.value(kv, row);
            value.iter_mut().for_each(|x| *x *= of.values);
            add(value, 1.0, &means[topic * d..][..d]);
            for head in kv * group..(kv + 1) * group {
                let asked = if bell.chance(0.5) { topic } else { bell.below(of.count) };
                let query = heads.query(head, row);
                query.iter_mut().for_each(|x| *x *= 0.5);
                add(query, of.queries, centre(asked));
            }
        }
    }
    heads
}

/// Every 64 tokens two opposite keys among others that are nearly equal: means show no trace of them. Some rows look for one.
fn needle_pairs(shape: Shape, bell: &mut Bell, looks: fn(usize) -> bool) -> Heads {
    let (d, group) = (shape.dim, shape.group());
    let mut heads = Heads::noise(shape, bell);
    heads.k.iter_mut().for_each(|x| *x *= 0.2);
    for kv in 0..shape.heads_kv {
        let pairs: Vec<Vec<f32>> = (0..shape.rows / 64).map(|_| bell.direction(d)).collect();
        for (i, along) in pairs.iter().enumerate() {
            for (row, side) in [(64 * i, 3.0), (64 * i + 1, -3.0)] {
                add(heads.key(kv, row), side, along);
            }
            heads.value(kv, 64 * i).iter_mut().for_each(|x| *x *= 3.0);
        }
        for (head, row) in (kv * group..(kv + 1) * group).flat_map(|h| (64..shape.rows).map(move |row| (h, row))) {
            let query = heads.query(head, row);
            if looks(row) {
                query.iter_mut().for_each(|x| *x *= 0.3);
                add(query, 4.0 * shape.root(), &pairs[bell.below(row / 64)]);
            } else {
                query.iter_mut().for_each(|x| *x *= 0.5);
            }
        }
    }
    heads
}

/// One key answers, in a coordinate of its value that is zero in all others.
fn one_needle(shape: Shape, bell: &mut Bell, looks: fn(usize) -> bool) -> Heads {
    let mut heads = topics(shape, bell, Topics { queries: 0.8, ..TOPICS });
    let (last, group) = (shape.dim - 1, shape.group());
    heads.values().for_each(|(_, value)| value[last] = 0.0);
    for kv in 0..shape.heads_kv {
        let (at, along) = (shape.rows / 8 + bell.below(shape.rows / 4), bell.direction(shape.dim));
        heads.value(kv, at)[last] = shape.root();
        add(heads.key(kv, at), 2.0, &along);
        for (head, row) in (kv * group..(kv + 1) * group).flat_map(|h| (0..shape.rows).map(move |row| (h, row))) {
            if looks(row) {
                add(heads.query(head, row), 3.5 * shape.root(), &along);
            }
        }
    }
    heads
}

/// One key in 1,000 is 50 times as long.
fn huge_norms(shape: Shape, bell: &mut Bell) -> Heads {
    let mut heads = topics(shape, bell, TOPICS);
    heads.keys().filter(|(row, _)| row % 1000 == 100).for_each(|(_, key)| key.iter_mut().for_each(|x| *x *= 50.0));
    heads
}

/// One value in 300 is 100 times as long.
fn huge_values(shape: Shape, bell: &mut Bell) -> Heads {
    let mut heads = topics(shape, bell, TOPICS);
    heads.values().filter(|(row, _)| row % 300 == 100).for_each(|(_, v)| v.iter_mut().for_each(|x| *x *= 100.0));
    heads
}

/// Two coordinates of all keys are far from zero; queries use them a little.
fn outlier_dimensions(shape: Shape, bell: &mut Bell) -> Heads {
    let mut heads = topics(shape, bell, TOPICS);
    for (_, key) in heads.keys() {
        (key[3], key[17]) = (50.0 + 2.0 * bell.normal(), -50.0 + 5.0 * bell.normal());
    }
    for (_, query) in heads.queries() {
        (query[3], query[17]) = (1.0 + 0.3 * bell.normal(), 0.5 * bell.normal());
    }
    heads
}

/// Two coordinates of all keys are far from zero, on either side; queries hardly use them.
fn outlier_signs(shape: Shape, bell: &mut Bell) -> Heads {
    let mut heads = topics(shape, bell, TOPICS);
    for (_, key) in heads.keys() {
        for at in [3, 17] {
            key[at] = if bell.chance(0.5) { 50.0 } else { -50.0 };
        }
    }
    for (_, query) in heads.queries() {
        (query[3], query[17]) = (0.02 * bell.normal(), 0.02 * bell.normal());
    }
    heads
}

/// The first key takes most of the weight of most rows; its value as long as said.
fn sink(shape: Shape, bell: &mut Bell, value: f32) -> Heads {
    let mut heads = topics(shape, bell, TOPICS);
    for kv in 0..shape.heads_kv {
        heads.key(kv, 0).fill(0.0);
        heads.key(kv, 0)[5] = 30.0;
        let fresh = bell.normals(shape.dim, value);
        heads.value(kv, 0).copy_from_slice(&fresh);
    }
    for (_, query) in heads.queries() {
        query[5] = shape.root() * (9.0 + 2.0 * bell.normal()) / 20.0;
    }
    heads
}

/// One coordinate of the first key is far out, on which half of the rows look away and half look at nothing else.
fn first_key(shape: Shape, bell: &mut Bell) -> Heads {
    let mut heads = topics(shape, bell, TOPICS);
    heads.keys().filter(|(row, _)| *row == 0).for_each(|(_, key)| key[5] = 1000.0);
    heads.queries().for_each(|(_, query)| query[5] = 0.3 * bell.normal());
    heads
}

/// Numbers of values as Student's distribution of two degrees has them.
fn heavy_tailed_values(shape: Shape, bell: &mut Bell) -> Heads {
    let mut heads = topics(shape, bell, TOPICS);
    for x in &mut heads.v {
        let [a, b] = [(); 2].map(|()| bell.normal());
        *x /= ((a * a + b * b) / 2.0 + 1e-6).sqrt();
    }
    heads
}

/// Values whose lengths follow a power law.
fn heavy_tailed_rows(shape: Shape, bell: &mut Bell) -> Heads {
    let mut heads = topics(shape, bell, TOPICS);
    for (_, value) in heads.values() {
        let times = (bell.even() + 1e-4).powf(-0.9) as f32;
        value.iter_mut().for_each(|x| *x *= times);
    }
    heads
}

/// From the middle on keys come together elsewhere, values turn around, and most queries point there.
fn shift(shape: Shape, bell: &mut Bell) -> Heads {
    let mut heads = topics(shape, bell, TOPICS);
    let half = shape.rows / 2;
    let side = |at: usize| if at % 2 == 1 { 1.0 } else { -1.0 };
    let blend = |x: &mut [f32], times: f32, plus: f32| {
        x.iter_mut().enumerate().for_each(|(at, x)| *x = times * *x + plus * side(at));
    };
    heads.keys().filter(|(row, _)| *row >= half).for_each(|(_, key)| blend(key, 0.3, 2.0));
    heads.values().filter(|(row, _)| *row >= half).for_each(|(_, value)| blend(value, -3.0, 0.0));
    heads.queries().filter(|(row, _)| *row >= half && row % 3 > 0).for_each(|(_, query)| blend(query, 1.5, 0.4));
    heads
}

/// A passage of 300 tokens four times out of five, with something new after every fourth; rows look for their token of it.
fn passages(shape: Shape, bell: &mut Bell) -> Heads {
    const LONG: usize = 300;
    let (d, group) = (shape.dim, shape.group());
    let mut heads = Heads::noise(shape, bell);
    for kv in 0..shape.heads_kv {
        let (keys, values) = (bell.normals(LONG * d, 1.2), bell.normals(LONG * d, 1.0));
        for row in 0..shape.rows {
            let at = row % LONG * d;
            // What is new is left as noise, a little longer.
            let [fresh, near, far] = if row / LONG % 5 == 4 { [0.0, 1.2, 1.04] } else { [1.0, 0.05, 0.3] };
            let key = heads.key(kv, row);
            key.iter_mut().for_each(|x| *x *= near);
            add(key, fresh, &keys[at..][..d]);
            let value = heads.value(kv, row);
            value.iter_mut().for_each(|x| *x *= far);
            add(value, fresh, &values[at..][..d]);
            for head in kv * group..(kv + 1) * group {
                let query = heads.query(head, row);
                query.iter_mut().for_each(|x| *x *= 0.3);
                add(query, 1.2, &keys[at..][..d]);
            }
        }
    }
    heads
}

/// All keys of a head are the same.
fn equal_keys(shape: Shape, bell: &mut Bell) -> Heads {
    let mut heads = Heads::noise(shape, bell);
    for head in heads.k.chunks_exact_mut(shape.rows * shape.dim) {
        (1..shape.rows).for_each(|row| head.copy_within(..shape.dim, row * shape.dim));
    }
    heads
}

/// Keys and queries of one coordinate each.
fn one_hot(shape: Shape, bell: &mut Bell) -> Heads {
    let mut heads = Heads::noise(shape, bell);
    heads.k.fill(0.0);
    heads.q.fill(0.0);
    heads.keys().for_each(|(_, key)| key[bell.below(shape.dim)] = 8.0);
    heads.queries().for_each(|(_, query)| query[bell.below(shape.dim)] = 0.6 * shape.root());
    heads
}

/// The same, but that nearly all keys share a coordinate that no row asks for.
fn one_hot_rare(shape: Shape, bell: &mut Bell) -> Heads {
    let mut heads = Heads::noise(shape, bell);
    heads.k.fill(0.0);
    heads.q.fill(0.0);
    for (row, key) in heads.keys() {
        key[if row % 511 == 0 { 1 + bell.below(shape.dim - 1) } else { 0 }] = 10.0;
    }
    heads.queries().for_each(|(_, query)| query[1 + bell.below(shape.dim - 1)] = 0.9 * shape.root());
    heads
}

/// Keys and queries near one vector each, rotated by their positions.
fn rotated(shape: Shape, bell: &mut Bell, spread: f32) -> Heads {
    let (d, group) = (shape.dim, shape.group());
    let turn = |row: usize, x: &mut [f32]| {
        for (i, pair) in x.chunks_exact_mut(2).enumerate() {
            let angle = row as f64 * 10_000f64.powf(-2.0 * i as f64 / d as f64);
            let (sin, cos) = (angle.sin() as f32, angle.cos() as f32);
            (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos);
        }
    };
    let mut heads = Heads::noise(shape, bell);
    for kv in 0..shape.heads_kv {
        let base = bell.normals(d, 1.0);
        for row in 0..shape.rows {
            let key = heads.key(kv, row);
            key.iter_mut().for_each(|x| *x *= spread);
            add(key, 1.0, &base);
            turn(row, key);
        }
        for head in kv * group..(kv + 1) * group {
            let mut asked = bell.normals(d, 1.0);
            add(&mut asked, 1.5, &base);
            for row in 0..shape.rows {
                let query = heads.query(head, row);
                query.iter_mut().for_each(|x| *x *= 0.5);
                add(query, 1.0, &asked);
                turn(row, query);
            }
        }
    }
    heads
}

/// Noise whose logits deviate by so much.
fn scaled_queries(shape: Shape, bell: &mut Bell, times: f32) -> Heads {
    let mut heads = Heads::noise(shape, bell);
    heads.q.iter_mut().for_each(|x| *x *= times);
    heads
}

/// Neighbours have opposite values.
fn cancelling_values(shape: Shape, bell: &mut Bell) -> Heads {
    let mut heads = topics(shape, bell, Topics { values: 0.1, ..TOPICS });
    for pair in heads.v.chunks_exact_mut(2 * shape.dim) {
        let (one, other) = pair.split_at_mut(shape.dim);
        for (a, b) in one.iter_mut().zip(other) {
            let x = 5.0 * bell.normal();
            (*a, *b) = (x + 0.1 * bell.normal(), -x + 0.1 * bell.normal());
        }
    }
    heads
}

/// Values that are products of two coordinates of their key.
fn products_of_keys(shape: Shape, bell: &mut Bell) -> Heads {
    let mut heads = topics(shape, bell, TOPICS);
    for (key, value) in heads.k.chunks_exact(shape.dim).zip(heads.v.chunks_exact_mut(shape.dim)) {
        value.iter_mut().enumerate().for_each(|(at, x)| *x = key[at] * key[(at + 1) % shape.dim]);
    }
    heads
}

/// Within every topic a tenth of the keys stands apart in one coordinate that all rows prefer, and so do values.
fn split_topics(shape: Shape, bell: &mut Bell) -> Heads {
    let mut heads = topics(shape, bell, Topics { count: 32, queries: 1.2, values: 0.2, ..TOPICS });
    for (key, value) in heads.k.chunks_exact_mut(shape.dim).zip(heads.v.chunks_exact_mut(shape.dim)) {
        let side = if bell.chance(0.1) { 1.0 } else { -0.1 };
        key[0] = 4.0 * side;
        value.iter_mut().enumerate().for_each(|(at, x)| *x += if at % 2 == 1 { 2.0 * side } else { -2.0 * side });
    }
    heads.queries().for_each(|(_, query)| query[0] = 0.6 * shape.root() + 0.3 * bell.normal());
    heads
}

/// Easy rows, but for those in the middle of every 2,048 from the second on, which look for one key each.
fn late_needles(shape: Shape, bell: &mut Bell) -> Heads {
    let mut heads = topics(shape, bell, Topics { count: 32, queries: 0.6, ..TOPICS });
    for head in 0..shape.heads_q {
        for row in (2048..shape.rows).filter(|row| (1001..1900).contains(&(row % 2048))) {
            let key = heads.key(head / shape.group(), bell.below(row)).to_vec();
            let times = 13.0 * shape.root() / dot(&key, &key);
            heads.query(head, row).iter_mut().zip(&key).for_each(|(q, k)| *q = times * k);
        }
    }
    heads
}
