//! What a session keeps beside its tokens speaks of the tokens that are there: a session from which some went, and to which others
//! came, has the bits of one that never had the first.

mod common;

use common::{memory, noise};
use iceformer_core::Status;
use iceformer_core::attention::{Attend, AttentionOptions, Mask, Mode, Problem, Session, SessionOptions, attention};
use iceformer_core::mem::{Dtype, Tensor, TensorMut};

const HEADS: usize = 2;
const DIM: usize = 16;
/// Complete segments of 256 tokens, and some more.
const BASE: usize = 1100;
const MORE: usize = 700;

fn options(mode: Mode) -> SessionOptions {
    SessionOptions {
        heads_q: 2 * HEADS,
        heads_kv: HEADS,
        dim_k: DIM,
        dim_v: DIM,
        capacity: 2600,
        kv_dtype: Dtype::F32,
        attention: AttentionOptions { mode, top_k: 20, ..AttentionOptions::default() },
        dense_below: 0,
    }
}

/// Tokens around the centres of a seed.
fn tokens(n: usize, seed: u64) -> [Vec<f32>; 2] {
    let centres = noise(8 * DIM, seed + 1, 2.0);
    let mut both = [noise(HEADS * n * DIM, seed, 0.4), noise(HEADS * n * DIM, seed + 2, 0.4)];
    for x in &mut both {
        for (i, row) in x.chunks_mut(DIM).enumerate() {
            row.iter_mut().zip(&centres[i * 7 % 8 * DIM..]).for_each(|(x, c)| *x += c);
        }
    }
    both
}

fn push(s: &mut Session, [k, v]: &[Vec<f32>; 2]) -> Result<(), Status> {
    let n = k.len() / HEADS / DIM;
    let tensor = |x| Tensor::new(x, [1, HEADS, n, DIM]).unwrap();
    s.append(tensor(k), tensor(v)).map_err(|e| e.status)
}

fn add(s: &mut Session, tokens: &[Vec<f32>; 2]) {
    push(s, tokens).unwrap();
    s.commit().unwrap();
}

/// Many rows and few, which take other ways.
fn attend(s: &Session) -> Vec<f32> {
    let mut all = vec![];
    for rows in [300, 1] {
        let q = noise(2 * HEADS * rows * DIM, 9, 1.5);
        let mut out = vec![f32::NAN; 2 * HEADS * rows * DIM];
        let to = TensorMut::new(&mut out, [1, 2 * HEADS, rows, DIM]).unwrap();
        s.attend(&Attend::new(Tensor::new(&q, [1, 2 * HEADS, rows, DIM]).unwrap(), &to), &memory(0)).unwrap();
        all.extend(out);
    }
    all
}

fn session(mode: Mode, parts: &[&[Vec<f32>; 2]]) -> Session {
    let mut s = Session::new_in(&options(mode), &memory(0)).unwrap();
    parts.iter().for_each(|tokens| add(&mut s, tokens));
    s
}

const MODES: [Mode; 3] = [Mode::Exact, Mode::Accelerated, Mode::TopK];

#[test]
fn what_was_rolled_back_leaves_nothing_when_other_tokens_come() {
    let (base, first, other) = (tokens(BASE, 10), tokens(MORE, 20), tokens(MORE, 30));
    for mode in MODES {
        let want = attend(&session(mode, &[&base, &other]));
        assert_ne!(want, attend(&session(mode, &[&base, &first])), "{mode:?}: the tokens matter");
        // Rolled back by hand; by a commit that finds heads uneven; by one that finds a head failed.
        for way in 0..3 {
            let mut s = session(mode, &[&base]);
            push(&mut s, &first).unwrap();
            match way {
                0 => s.roll_back(),
                1 => {
                    let one = vec![0.5; DIM];
                    let row = |x| Tensor::new(x, [1, 1, 1, DIM]).unwrap().head(0, 0);
                    s.heads_mut()[1].append(row(&one), row(&one)).unwrap();
                    assert_eq!(s.commit().unwrap_err().status, Status::State);
                }
                _ => {
                    let mut bad = tokens(3, 40);
                    bad[0][5 * DIM] = f32::NAN;
                    assert_eq!(push(&mut s, &bad), Err(Status::NotFinite));
                    assert_eq!(s.commit().unwrap_err().status, Status::NotFinite);
                }
            }
            assert_eq!(s.len(), BASE);
            add(&mut s, &other);
            assert!(attend(&s) == want, "{mode:?}, way {way}");
        }
    }
}

#[test]
fn what_was_cut_off_leaves_nothing_when_other_tokens_come() {
    let (base, first, other) = (tokens(BASE, 10), tokens(MORE, 20), tokens(MORE, 30));
    for mode in MODES {
        let want = attend(&session(mode, &[&base, &other]));
        let mut s = session(mode, &[&base, &first]);
        s.truncate(BASE).unwrap();
        add(&mut s, &other);
        assert!(attend(&s) == want, "{mode:?}: truncated");
        let mut s = session(mode, &[&first, &base]);
        s.remove_range(0, MORE).unwrap();
        add(&mut s, &other);
        assert!(attend(&s) == want, "{mode:?}: removed");
    }
}

#[test]
fn a_reset_session_is_a_new_one() {
    let (first, other) = (tokens(BASE + MORE, 20), tokens(BASE, 30));
    for mode in MODES {
        let want = attend(&session(mode, &[&other]));
        let mut s = session(mode, &[&first]);
        attend(&s);
        s.reset();
        assert_eq!(s.len(), 0);
        add(&mut s, &other);
        assert!(attend(&s) == want, "{mode:?}");
        // Also before a commit, and of a failure.
        push(&mut s, &first).unwrap_err();
        s.reset();
        add(&mut s, &other);
        assert!(attend(&s) == want, "{mode:?}, between append and commit");
    }
}

/// Queries are refused for keys and values that are there, not for those that a reset took.
#[test]
fn what_is_too_large_is_forgotten_by_a_reset() {
    for side in 0..2 {
        let mut s = session(Mode::Exact, &[&tokens(20, 1)]);
        let mut huge = tokens(1, 2);
        huge[side][0] = 1e38;
        add(&mut s, &huge);
        let (q, mut out) = (vec![30.0; 2 * HEADS * DIM], vec![0.0; 2 * HEADS * DIM]);
        let mut ask = |s: &Session| {
            let to = TensorMut::new(&mut out, [1, 2 * HEADS, 1, DIM]).unwrap();
            let q = Tensor::new(&q, [1, 2 * HEADS, 1, DIM]).unwrap();
            s.attend(&Attend::new(q, &to), &memory(0)).map(|_| ()).map_err(|e| e.status)
        };
        assert_eq!(ask(&s), Err(Status::NotFinite), "side {side}");
        s.reset();
        add(&mut s, &tokens(20, 1));
        assert_eq!(ask(&s), Ok(()), "side {side}");
    }
}

/// A bound on the error speaks of the longest keys and values that are there.
#[test]
fn certificates_of_a_reset_session_are_those_of_a_new_one() {
    let certified = |first: Option<f32>| {
        let mut o = options(Mode::Exact);
        o.attention.certificate = true;
        let mut s = Session::new_in(&o, &memory(0)).unwrap();
        if let Some(times) = first {
            let long = tokens(50, 3).map(|x| x.iter().map(|x| x * times).collect());
            add(&mut s, &long);
            s.reset();
        }
        add(&mut s, &tokens(200, 4));
        let (q, mut out) = (noise(2 * HEADS * 8 * DIM, 5, 1.0), vec![0.0; 2 * HEADS * 8 * DIM]);
        let shape = [1, 2 * HEADS, 8, DIM];
        let to = TensorMut::new(&mut out, shape).unwrap();
        let stats = s.attend(&Attend::new(Tensor::new(&q, shape).unwrap(), &to), &memory(0)).unwrap();
        (stats.certified_error, stats.certified_mean)
    };
    // The longest of the session are those of a call over the same tokens.
    let called = {
        let ([k, v], q) = (tokens(200, 4), noise(2 * HEADS * 8 * DIM, 5, 1.0));
        let (mut out, shape) = (vec![0.0; 2 * HEADS * 8 * DIM], [1, 2 * HEADS, 8, DIM]);
        let kv = |x| Tensor::new(x, [1, HEADS, 200, DIM]).unwrap();
        let problem = Problem {
            q: Tensor::new(&q, shape).unwrap(),
            k: kv(&k),
            v: kv(&v),
            out: TensorMut::new(&mut out, shape).unwrap(),
            lse: None,
            bounds: None,
            mask: Mask::Causal { q_pos0: 192 },
            options: AttentionOptions { mode: Mode::Exact, certificate: true, ..AttentionOptions::default() },
        };
        let stats = attention(&problem, &memory(0)).unwrap();
        (stats.certified_error, stats.certified_mean)
    };
    let fresh = certified(None);
    assert_eq!(fresh, called);
    assert!(fresh.0 > 0.0 && fresh.0.is_finite());
    assert_eq!(certified(Some(1000.0)), fresh);
}
