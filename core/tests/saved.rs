//! Saved bytes: forged with the checksum right, damaged, handed over piece by piece, under a limit.

mod common;

use common::{kept, memory, noise};
use iceformer_core::Status;
use iceformer_core::attention::{Attend, AttentionOptions, Mode, Session, SessionOptions};
use iceformer_core::dci::{Directions, Engine, Index, IndexOptions, Metric};
use iceformer_core::mem::{Dtype, Rows, Tensor, TensorMut};

const DIM: usize = 8;
/// Bytes before the first token of a session, and before the first id of an index.
const SESSION: usize = 8 + 4 + 4 * 16 + 8 * 8;
const INDEX: usize = 8 + 4 + 4 * 9 + 8 * 4;

fn session(mode: Mode, kv_dtype: Dtype, n: usize) -> Session {
    let options = SessionOptions {
        heads_q: 2,
        heads_kv: 2,
        dim_k: DIM,
        dim_v: DIM,
        capacity: 700,
        kv_dtype,
        attention: AttentionOptions { mode, ..AttentionOptions::default() },
        dense_below: 0,
    };
    let mut session = Session::new_in(&options, &memory(0)).unwrap();
    add(&mut session, n, 1);
    session
}

fn add(session: &mut Session, n: usize, seed: u64) {
    let (k, v) = (noise(2 * n * DIM, seed, 2.0), noise(2 * n * DIM, seed + 1, 1.0));
    let tensor = |x| Tensor::new(x, [1, 2, n, DIM]).unwrap();
    session.append(tensor(&k), tensor(&v)).unwrap();
    session.commit().unwrap();
}

fn attend(session: &Session, q: &[f32]) -> Vec<f32> {
    let rows = q.len() / 2 / DIM;
    let mut out = vec![f32::NAN; 2 * rows * DIM];
    let to = TensorMut::new(&mut out, [1, 2, rows, DIM]).unwrap();
    session.attend(&Attend::new(Tensor::new(q, [1, 2, rows, DIM]).unwrap(), &to), &memory(0)).unwrap();
    out
}

fn saved(session: &Session) -> Vec<u8> {
    let mut bytes = vec![0; session.save_len()];
    session.save(&mut bytes).unwrap();
    bytes
}

fn index(metric: Metric, engine: Engine, directions: Directions, n: usize) -> Index {
    let options = IndexOptions { metric, engine, directions, capacity: n, ..IndexOptions::new(DIM) };
    let mut index = Index::new_in(&options, &memory(0)).unwrap();
    index.insert(Rows::new(&noise(n * DIM, 3, 1.0), DIM).unwrap(), None).unwrap();
    if directions == Directions::Fitted {
        index.fit(Some(Rows::new(&noise(200 * DIM, 5, 1.0), DIM).unwrap())).unwrap();
    }
    index
}

fn saved_index(index: &Index) -> Vec<u8> {
    let mut bytes = vec![0; index.save_len()];
    index.save(&mut bytes).unwrap();
    bytes
}

/// The bytes with `at` replaced, and the checksum of that.
fn forged(bytes: &[u8], at: usize, by: &[u8]) -> Vec<u8> {
    let mut bytes = bytes[..bytes.len() - 4].to_vec();
    bytes[at..][..by.len()].copy_from_slice(by);
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

/// A source that counts what it is asked for.
fn source<'a>(bytes: &'a [u8], at: &'a mut usize) -> impl FnMut(&mut [u8]) -> usize + 'a {
    move |to| {
        assert!(to.len() <= 1024, "{} bytes at once", to.len());
        let n = to.len().min(bytes.len() - *at);
        to[..n].copy_from_slice(&bytes[*at..][..n]);
        *at += n;
        n
    }
}

/// Refused in the same way from memory and piece by piece.
fn refused_session(bytes: &[u8], what: &str) {
    assert_eq!(Session::load(bytes, &memory(0)).err().map(|e| e.status), Some(Status::Buffer), "{what}");
    let stream = Session::load_from(&mut source(bytes, &mut 0), &memory(0));
    assert_eq!(stream.err().map(|e| e.status), Some(Status::Buffer), "{what}, in pieces");
}

fn refused_index(bytes: &[u8], what: &str) {
    assert_eq!(Index::load(bytes, &memory(0)).err().map(|e| e.status), Some(Status::Buffer), "{what}");
    let stream = Index::load_from(&mut source(bytes, &mut 0), &memory(0));
    assert_eq!(stream.err().map(|e| e.status), Some(Status::Buffer), "{what}, in pieces");
}

#[test]
fn forged_sessions_are_refused() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let bytes = saved(&session(Mode::Exact, dtype, 20));
        let (nan, infinite): (&[u8], &[u8]) = match dtype {
            Dtype::F32 => (&[0, 0, 0xc0, 0x7f], &[0, 0, 0x80, 0xff]),
            Dtype::F16 => (&[0, 0x7e], &[0, 0x7c]),
            Dtype::Bf16 => (&[0xc0, 0x7f], &[0x80, 0x7f]),
        };
        // First and last number of the keys and of the values of a head.
        let size = dtype.size();
        for element in [0, 20 * DIM - 1, 20 * DIM, 40 * DIM - 1, 80 * DIM - 1] {
            for number in [nan, infinite] {
                let bad = forged(&bytes, SESSION + element * size, number);
                refused_session(&bad, &format!("{dtype:?}, number {element}"));
            }
        }
    }
    let bytes = saved(&session(Mode::Exact, Dtype::F32, 20));
    assert_eq!(Session::load(&forged(&bytes, 0, b"ICE"), &memory(0)).unwrap().len(), 20);
    let (word, long) = (|i: usize| 12 + 4 * i, |i: usize| 12 + 4 * 16 + 8 * i);
    for bit in 4..32 {
        refused_session(&forged(&bytes, word(6), &(1u32 << bit).to_le_bytes()), &format!("flag {bit}"));
    }
    refused_session(&forged(&bytes, word(15), &[1]), "a reserved word");
    refused_session(&forged(&bytes, word(4), &[3]), "an element type");
    refused_session(&forged(&bytes, word(5), &[4]), "a mode");
    refused_session(&forged(&bytes, word(1), &[0]), "no heads");
    // Of the length that the tokens have, but more than the capacity.
    refused_session(&forged(&bytes, long(1), &19u64.to_le_bytes()), "a length above the capacity");
    assert!(Session::load(&forged(&bytes, long(1), &20u64.to_le_bytes()), &memory(0)).is_ok());
    refused_session(&forged(&bytes, long(2), &21u64.to_le_bytes()), "a token too many");
    refused_session(&forged(&bytes, long(7), &[2]), "what no version put behind the tokens");
    // Version 0.1 put more behind the tokens: such bytes are read to their end, no more at once than others.
    for more in [0, 1, 1020, 1024, 5000] {
        let body = [&bytes[..bytes.len() - 4], &vec![7; more + 4]].concat();
        let old = forged(&body, long(7), &[1]);
        let mut at = 0;
        assert_eq!(Session::load_from(&mut source(&old, &mut at), &memory(0)).unwrap().len(), 20, "{more} more");
        assert_eq!((at, Session::load(&old, &memory(0)).unwrap().len()), (old.len(), 20), "{more} more");
    }
    for len in [0u64, 19] {
        let bad = forged(&bytes, long(2), &len.to_le_bytes());
        refused_session(&bad, "tokens that the header does not tell");
        assert_eq!(Session::peek(&bad).err().map(|e| e.status), Some(Status::Buffer), "{len} tokens");
    }
    // Keys and numbers of directions that no index takes; the latter are told before anything is planned.
    let bytes = saved(&session(Mode::TopK, Dtype::F32, 20));
    for (field, by) in [(11, 9u32), (12, 256), (13, 256), (12, u32::MAX)] {
        let bad = forged(&bytes, word(field), &by.to_le_bytes());
        refused_session(&bad, &format!("{by} in word {field}"));
        assert_eq!(Session::peek(&bad).err().map(|e| e.status), Some(Status::Buffer), "{by} in word {field}");
    }
    refused_session(&forged(&bytes, SESSION, &1e18f32.to_le_bytes()), "a key too long");
}

#[test]
fn forged_indices_are_refused() {
    let bytes = saved_index(&index(Metric::InnerProduct, Engine::Auto, Directions::Random, 20));
    assert_eq!(Index::load(&forged(&bytes, 0, b"ICE"), &memory(0)).unwrap().len(), 20);
    let keys = INDEX + 8 * 20;
    for at in [keys, keys + 4 * (DIM * 20 - 1)] {
        for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e18] {
            refused_index(&forged(&bytes, at, &number.to_le_bytes()), &format!("{number} at {at}"));
        }
    }
    let (word, long) = (|i: usize| 12 + 4 * i, |i: usize| 12 + 4 * 9 + 8 * i);
    for bit in 5..32 {
        refused_index(&forged(&bytes, word(5), &(1u32 << bit).to_le_bytes()), &format!("flag {bit}"));
    }
    refused_index(&forged(&bytes, word(1), &[3]), "a metric");
    refused_index(&forged(&bytes, word(8), &f32::NAN.to_le_bytes()), "a norm bound");
    refused_index(&forged(&bytes, long(1), &19u64.to_le_bytes()), "more keys than the capacity");
    refused_index(&forged(&bytes, long(3), &21u64.to_le_bytes()), "a key too many");
    refused_index(&forged(&bytes, long(2), &19u64.to_le_bytes()), "an id that is still to come");
    refused_index(&forged(&bytes, INDEX, &[255; 8]), "the reserved id");
    refused_index(&forged(&bytes, INDEX, &[1]), "an id twice");
}

/// A header that asks for a thousand times the memory is refused before a block is taken.
#[test]
fn a_forged_capacity_meets_the_limit_first() {
    let limit = 1 << 20;
    let at = |e: iceformer_core::Error, m: &iceformer_core::mem::Memory, fresh: usize| {
        assert_eq!((e.status, e.field), (Status::Budget, "memory_limit"));
        assert_eq!(m.report().peak, fresh, "blocks were taken");
    };
    let fresh = memory(limit).report().used;
    let bytes = saved(&session(Mode::Auto, Dtype::F32, 20));
    let bad = forged(&bytes, 12 + 4 * 16 + 8, &(1u64 << 30).to_le_bytes());
    let m = memory(limit);
    at(Session::load(&bad, &m).err().unwrap(), &m, fresh);
    at(Session::load_from(&mut source(&bad, &mut 0), &m).err().unwrap(), &m, fresh);
    let need = Session::load(&bytes, &memory(0)).unwrap().memory().used;
    assert!(Session::load(&bytes, &memory(need)).is_ok() && Session::load(&bytes, &memory(need - 1)).is_err());

    let bytes = saved_index(&index(Metric::L2, Engine::Auto, Directions::Random, 20));
    let bad = forged(&bytes, 12 + 4 * 9 + 8, &(1u64 << 30).to_le_bytes());
    at(Index::load(&bad, &m).err().unwrap(), &m, fresh);
    at(Index::load_from(&mut source(&bad, &mut 0), &m).err().unwrap(), &m, fresh);
    if cfg!(target_endian = "big") {
        return;
    }
    at(Index::view(kept(&bad, 0), &m).err().unwrap(), &m, fresh);
}

#[test]
fn what_is_written_in_pieces_is_read_in_pieces() {
    let sessions = [
        session(Mode::Auto, Dtype::Bf16, 300),
        session(Mode::TopK, Dtype::F32, 100),
        session(Mode::Exact, Dtype::F16, 0),
    ];
    let indices = [
        index(Metric::InnerProduct, Engine::Auto, Directions::Fitted, 600),
        index(Metric::Cosine, Engine::Walk, Directions::Random, 30),
    ];
    // One after the other in one stream: each takes its own bytes.
    let mut all = vec![];
    let mut write = |piece: &[u8]| {
        assert!(piece.len() <= 1024);
        all.extend_from_slice(piece);
        true
    };
    sessions.iter().for_each(|s| s.save_to(&mut write).unwrap());
    indices.iter().for_each(|i| i.save_to(&mut write).unwrap());
    let whole: Vec<u8> = sessions.iter().map(saved).chain(indices.iter().map(saved_index)).flatten().collect();
    assert!(all == whole);
    let mut at = 0;
    for s in &sessions {
        let loaded = Session::load_from(&mut source(&all, &mut at), &memory(0)).unwrap();
        assert!(saved(&loaded) == saved(s) && loaded.len() == s.len());
    }
    for i in &indices {
        let loaded = Index::load_from(&mut source(&all, &mut at), &memory(0)).unwrap();
        assert!(saved_index(&loaded) == saved_index(i));
    }
    assert_eq!(at, all.len());
}

#[test]
fn pieces_that_end_early_or_are_damaged_are_refused() {
    let (s, i) =
        (saved(&session(Mode::TopK, Dtype::F16, 9)), index(Metric::L2, Engine::Cells, Directions::Fitted, 300));
    let i = saved_index(&i);
    for cut in (0..s.len()).step_by(7) {
        refused_session(&s[..cut], "cut");
    }
    for cut in (0..i.len()).step_by(199) {
        refused_index(&i[..cut], "cut");
    }
    // A header is believed until the checksum: what it asks for meets the limit.
    for at in 0..s.len() {
        let mut bad = s.clone();
        bad[at] ^= 0x21;
        let e = Session::load_from(&mut source(&bad, &mut 0), &memory(8 << 20)).err().expect("refused");
        assert!(matches!(e.status, Status::Buffer | Status::Budget | Status::NoMemory), "byte {at}: {e}");
    }
    for at in (0..i.len()).step_by(if cfg!(miri) { 997 } else { 11 }).chain(0..INDEX) {
        let mut bad = i.clone();
        bad[at] ^= 0x21;
        let e = Index::load_from(&mut source(&bad, &mut 0), &memory(8 << 20)).err().expect("refused");
        assert!(matches!(e.status, Status::Buffer | Status::Budget | Status::NoMemory), "byte {at}: {e}");
    }
    // A writer that takes less.
    for most in [0, 1, 3] {
        let mut taken = 0;
        let mut write = |_: &[u8]| {
            taken += 1;
            taken <= most
        };
        let e = session(Mode::Exact, Dtype::F32, 100).save_to(&mut write).unwrap_err();
        assert_eq!((e.status, e.field, taken), (Status::Buffer, "write", most + 1));
    }
}

/// The bound on norms that an index learnt from keys that are gone speaks of them no longer.
#[test]
fn top_k_sessions_attend_the_same_when_tokens_were_removed() {
    for seed in 0..6 {
        for way in 0..4 {
            let mut s = session(Mode::TopK, Dtype::F32, 0);
            let n = 500;
            let mut k = noise(2 * n * DIM, 10 + seed, 1.0);
            // The longest key of each head is among those that go.
            for head in 0..2 {
                k[(head * n + 450) * DIM..][..DIM].iter_mut().for_each(|x| *x *= 40.0);
            }
            let v = noise(2 * n * DIM, 50 + seed, 1.0);
            let tensor = |x| Tensor::new(x, [1, 2, n, DIM]).unwrap();
            s.append(tensor(&k), tensor(&v)).unwrap();
            s.commit().unwrap();
            match way {
                0 => s.truncate(400).unwrap(),
                1 => s.remove_range(440, 460).unwrap(),
                2 => s.remove_range(0, 470).unwrap(),
                _ => {}
            }
            let bytes = saved(&s);
            assert_eq!(bytes.len(), s.save_len());
            let loaded = Session::load(&bytes, &memory(0)).unwrap();
            assert!(saved(&loaded) == bytes);
            let q = noise(2 * 20 * DIM, 90 + seed, 1.0);
            assert!(attend(&loaded, &q) == attend(&s, &q), "seed {seed}, way {way}");
            // And goes on alike.
            let mut both = [s, loaded];
            both.iter_mut().for_each(|s| add(s, 30, 7));
            assert!(attend(&both[0], &q) == attend(&both[1], &q), "seed {seed}, way {way}, later");
        }
    }
}

#[test]
fn certificates_are_saved() {
    for (certificate, verified) in [(true, false), (true, true), (false, false)] {
        let mut options = *session(Mode::Auto, Dtype::F32, 0).options();
        (options.attention.certificate, options.attention.verified) = (certificate, verified);
        let mut s = Session::new_in(&options, &memory(0)).unwrap();
        add(&mut s, 20, 1);
        let a = Session::load(&saved(&s), &memory(0)).unwrap().options().attention;
        assert_eq!((a.certificate, a.verified), (certificate, verified));
    }
}

/// Tokens that are gone count for nothing: what they would have refused is attended, and bounds are those of what is there.
#[test]
fn large_tokens_that_are_gone_are_forgotten() {
    let (n, huge) = (60, 40);
    for (dtype, certificate) in [(Dtype::F32, true), (Dtype::F32, false), (Dtype::Bf16, true)] {
        for value in [false, true] {
            for way in 0..5 {
                let mut options = *session(Mode::Exact, dtype, 0).options();
                (options.attention.certificate, options.capacity) = (certificate, 64);
                let fresh = || Session::new_in(&options, &memory(0)).unwrap();
                let (mut k, mut v) = (noise(2 * n * DIM, 10, 1.0), noise(2 * n * DIM, 11, 1.0));
                if way != 3 {
                    let x = if value { &mut v } else { &mut k };
                    x[(n + huge) * DIM + 3] = 1e37;
                }
                let push = |s: &mut Session, first: usize, end: usize| {
                    let cut = |x: &[f32]| -> Vec<f32> {
                        (0..2).flat_map(|h| x[(h * n + first) * DIM..(h * n + end) * DIM].to_vec()).collect()
                    };
                    let (k, v) = (cut(&k), cut(&v));
                    let tensor = |x| Tensor::new(x, [1, 2, end - first, DIM]).unwrap();
                    s.append(tensor(&k), tensor(&v))
                };
                let (mut s, mut twin) = (fresh(), fresh());
                let q = noise(2 * 5 * DIM, 90, 9.0);
                let attended = |s: &Session| {
                    let mut out = vec![f32::NAN; 2 * 5 * DIM];
                    let to = TensorMut::new(&mut out, [1, 2, 5, DIM]).unwrap();
                    let q = Tensor::new(&q, [1, 2, 5, DIM]).unwrap();
                    let stats = s.attend(&Attend::new(q, &to), &memory(0)).map_err(|e| e.status);
                    stats.map(|s| (s.certified, s.certified_error.to_bits(), out))
                };
                push(&mut s, 0, if way == 2 { huge } else { n }).unwrap();
                s.commit().unwrap();
                push(&mut twin, 0, huge).unwrap();
                match way {
                    // The last tokens go, or some in the middle, or what was appended and not published; nothing large in the last.
                    0 | 3 => s.truncate(huge).unwrap(),
                    1 => {
                        assert_eq!(attended(&s), Err(Status::NotFinite));
                        s.remove_range(huge - 3, huge + 1).unwrap();
                        twin = fresh();
                        push(&mut twin, 0, huge - 3).unwrap();
                        push(&mut twin, huge + 1, n).unwrap();
                    }
                    4 => {
                        s.reset();
                        push(&mut s, 0, huge).unwrap();
                        s.commit().unwrap();
                    }
                    _ => {
                        push(&mut s, huge, n).unwrap();
                        assert!(push(&mut s, 0, 30).is_err() && s.commit().is_err());
                    }
                }
                twin.commit().unwrap();
                let what = format!("{dtype:?}, certificate {certificate}, value {value}, way {way}");
                let (a, b) = (attended(&s), attended(&twin));
                assert!(a == b && a.is_ok(), "{what}: {:?} {:?}", a.map(|a| a.0), b.map(|b| b.0));
                assert!(attended(&Session::load(&saved(&s), &memory(0)).unwrap()) == attended(&s), "{what}, loaded");
            }
        }
    }
}
