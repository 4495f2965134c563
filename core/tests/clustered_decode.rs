//! Accelerated attention of a few hundred keys, small enough for an interpreter of Rust: cells are built, some opened and some
//! estimated, in a session.

mod common;

use common::{Naive, memory, noise};
use iceformer_core::attention::{Attend, AttentionOptions, Mode, Session, SessionOptions};
use iceformer_core::mem::{Dtype, Plan, Rows, Tensor, TensorMut};

const DIM: usize = 3;
const SEGMENT: usize = 256;
/// One segment, and keys beside it.
const KEYS: usize = SEGMENT + 9;

#[test]
fn a_session() {
    let near = |seed: u64| {
        let centres = noise(6 * DIM, seed + 9, 2.0);
        let mut x = noise(KEYS * DIM, seed, 0.15);
        for (i, row) in x.chunks_mut(DIM).enumerate() {
            row.iter_mut().zip(&centres[i / 11 % 6 * DIM..]).for_each(|(x, c)| *x += c);
        }
        x
    };
    let (q, k, v) = (noise(2 * 2 * DIM, 3, 2.0), near(1), near(2));
    let o = SessionOptions {
        heads_q: 2,
        heads_kv: 1,
        dim_k: DIM,
        dim_v: DIM,
        capacity: KEYS,
        kv_dtype: Dtype::F32,
        attention: AttentionOptions {
            mode: Mode::Accelerated,
            tolerance: 0.1,
            scale: 1.0,
            ..AttentionOptions::default()
        },
        dense_below: 0,
    };
    let mut session = Session::new_in(&o, &memory(0)).unwrap();
    // A segment that is complete, and taken back, and complete again.
    for (begin, end) in [(0, SEGMENT + 1), (SEGMENT - 1, KEYS)] {
        session.truncate(begin).unwrap();
        let (k, v) = (&k[begin * DIM..end * DIM], &v[begin * DIM..end * DIM]);
        session.heads_mut()[0].append(Rows::new(k, DIM).unwrap(), Rows::new(v, DIM).unwrap()).unwrap();
        session.commit().unwrap();
    }
    let mut plan = Plan::new();
    session.work_plan(2, &mut plan).unwrap();
    let bytes = plan.finish().unwrap().bytes;
    let attend = |session: &Session| {
        let mut out = vec![f32::NAN; 2 * 2 * DIM];
        let to = TensorMut::new(&mut out, [1, 2, 2, DIM]).unwrap();
        let rows = Tensor::new(&q, [1, 2, 2, DIM]).unwrap();
        let stats = session.attend(&Attend::new(rows, &to), &memory(bytes)).unwrap();
        (out, stats)
    };
    // The first rows are attended exactly, too: what they measure counts from the next commit on.
    let (first, stats) = attend(&session);
    assert!(stats.measured.rows() == 2 && stats.cells_opened > 0, "{stats:?}");
    session.commit().unwrap();
    let (out, stats) = attend(&session);
    assert!(stats.measured.rows() == 0 && stats.pairs < stats.pairs_dense, "{stats:?}");
    for (q, out) in q.chunks(2 * DIM).zip(out.chunks(2 * DIM)) {
        let sees = |i: usize, j: usize| (j + 2 <= KEYS + i).then_some(0.0);
        let options = o.attention;
        let naive = Naive { q, k: &k, v: &v, dim_k: DIM, dim_v: DIM, options, sees: &sees, top: usize::MAX };
        for (have, want) in out.chunks(DIM).zip(naive.run().0.chunks(DIM)) {
            let wrong: f64 = have.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
            let error = (wrong / want.iter().map(|x| x * x).sum::<f64>()).sqrt();
            assert!(error < 0.2, "off by {error}");
        }
    }
    let mut bytes = vec![0; session.save_len()];
    session.save(&mut bytes).unwrap();
    // A loaded session knows nothing of what rows have found.
    assert!(attend(&Session::load(&bytes, &memory(0)).unwrap()).0 == first);
}
