//! Sessions that keep cells: the same bits however they came to their tokens, near exact attention, exact where that is called for.
//!
//! What rows find out, keys that are heavy and how loose the threshold may be, is state of a session beside its tokens: sessions are
//! compared that have attended to the same rows at the same lengths.

mod common;

use common::tokens::{Outcome, Tokens, attend, attend_all, call, error, hold, options, with};
use common::{memory, noise};
use half::{bf16, f16};
use iceformer_core::attention::clustered::Scored;
use iceformer_core::attention::{Attend, AttentionOptions, Mask, Mode, Reason, Session, SessionOptions};
use iceformer_core::mem::{Dtype, Plan, Tensor, TensorMut};
use iceformer_core::simd::Isa;

/// Keys of a segment, as the library has it.
const SEGMENT: usize = 256;

/// Rows on either side of where few become many and one block becomes two.
const ROWS: [usize; 9] = [1, 2, 4, 5, 13, 64, 65, 130, 300];

/// Work memory for some rows does for fewer, and one row needs a fraction of what a prompt does.
#[test]
fn work_memory_grows_with_rows() {
    let tokens = Tokens::new(2, [64, 64], 40, 1);
    for mode in [Mode::Accelerated, Mode::Exact, Mode::TopK, Mode::Auto] {
        for certificate in [false, mode == Mode::Accelerated] {
            let o = with(options(&tokens, 2, mode), |o| o.certificate = certificate);
            let session = Session::new_in(&SessionOptions { capacity: 16 * SEGMENT, ..o }, &memory(0)).unwrap();
            let bytes = |rows| {
                let mut plan = Plan::new();
                session.work_plan(rows, &mut plan).unwrap();
                plan.finish().unwrap().bytes
            };
            let mut before = 0;
            for rows in (0..1200).chain([4095, 4096, 10_000, usize::MAX]) {
                assert!(bytes(rows) >= before, "{mode:?}: {rows} rows");
                before = bytes(rows);
            }
            assert!(mode == Mode::TopK || 3 * bytes(1) < before, "{mode:?}: {} and {before}", bytes(1));
        }
    }
}

/// A call without rows does nothing, whatever the session holds and knows.
#[test]
fn no_rows_are_attended_in_every_mode() {
    let tokens = Tokens::new(2, [24, 16], 3 * SEGMENT + 20, 8);
    for mode in [Mode::Accelerated, Mode::Exact, Mode::TopK, Mode::Auto] {
        for len in [0, 20, tokens.len()] {
            let mut session = Session::new_in(&options(&tokens, 2, mode), &memory(0)).unwrap();
            tokens.append(&mut session, 0, len);
            session.commit().unwrap();
            for known in [false, true] {
                for mask in [None, Some(Mask::None)] {
                    for nth in [1, 3] {
                        let (outcome, stats) = attend_all(&session, 0, mask, nth);
                        assert!(
                            outcome.out.is_empty() && [stats.pairs, stats.pairs_dense, stats.rows] == [0; 3],
                            "{mode:?}"
                        );
                    }
                }
                if !known && len > 0 {
                    attend_all(&session, 1, None, 1);
                    attend_all(&session, len.min(65), None, 1);
                }
            }
        }
    }
}

/// Heads come one after the other: more of them take no more work memory, larger groups do.
#[test]
fn work_memory_is_for_one_kv_head() {
    let bytes = |heads: usize, group: usize, rows: usize| {
        let tokens = Tokens::new(heads, [64, 64], SEGMENT, 1);
        let session = Session::new_in(&options(&tokens, group, Mode::Accelerated), &memory(0)).unwrap();
        let mut plan = Plan::new();
        session.work_plan(rows, &mut plan).unwrap();
        plan.finish().unwrap().bytes
    };
    for rows in [1, 300] {
        assert_eq!(bytes(1, 2, rows), bytes(3, 2, rows), "{rows} rows");
        assert!(bytes(1, 4, rows) > bytes(1, 2, rows), "{rows} rows");
    }
}

/// A look sees every row of every head that is attended exactly, once: where cells are not used yet, and where a step is measured.
#[test]
fn exact_steps_are_seen_head_by_head() {
    for len in [SEGMENT / 2, 8 * SEGMENT + 10] {
        let tokens = Tokens::new(2, [24, 16], len, 3);
        let session = tokens.session(&options(&tokens, 3, Mode::Accelerated), SEGMENT);
        let (rows, o) = (2, *session.options());
        let q = noise(o.heads_q * rows * o.dim_k, 7, 1.5);
        let mut out = vec![0.0; o.heads_q * rows * o.dim_v];
        let (mut whole, mut stats) = (vec![0; o.heads_q * rows], None);
        {
            let q = Tensor::new(&q, [1, o.heads_q, rows, o.dim_k]).unwrap();
            let out = TensorMut::new(&mut out, [1, o.heads_q, rows, o.dim_v]).unwrap();
            let mut watch = |head: usize, row: usize, scored: Scored<'_>| {
                assert!(matches!(scored, Scored::All), "{len} tokens: head {head}, row {row}");
                whole[head * rows + row] += 1;
            };
            let mut plan = Plan::new();
            session.work_plan(rows, &mut plan).unwrap();
            let work = memory(plan.finish().unwrap().bytes);
            stats.replace(session.attend_watched(&Attend::new(q, &out), &work, &mut watch).unwrap());
        }
        // The first step after the tokens is measured.
        let stats = stats.unwrap();
        assert_eq!(stats.measured.rows() > 0, len > SEGMENT, "{stats:?}");
        assert_eq!(whole, vec![1; o.heads_q * rows], "{len} tokens");
    }
}

#[test]
fn appending_in_any_chunks_gives_the_same_bits() {
    let tokens = Tokens::new(2, [40, 40], 3 * SEGMENT + 100, 3);
    let o = options(&tokens, 2, Mode::Accelerated);
    let whole = tokens.session(&o, tokens.len());
    for chunk in [1, 255, 256, 257, 600] {
        let pieces = tokens.session(&o, chunk);
        for rows in [1, 5, 300] {
            assert_eq!(attend(&pieces, rows), attend(&whole, rows), "chunks of {chunk}");
        }
    }
    // Several appends of one commit.
    let mut pieces = Session::new_in(&o, &memory(0)).unwrap();
    for begin in (0..tokens.len()).step_by(100) {
        tokens.append(&mut pieces, begin, (begin + 100).min(tokens.len()));
    }
    pieces.commit().unwrap();
    assert_eq!(attend(&pieces, 300), attend(&whole, 300));
}

#[test]
fn truncating_and_removing_leave_what_a_fresh_session_has() {
    // Beyond four segments not all count for the moments.
    let tokens = Tokens::new(2, [48, 32], 12 * SEGMENT + 17, 5);
    let o = options(&tokens, 2, Mode::Accelerated);
    let check = |session: &Session, tokens: &Tokens, what: &str| {
        let fresh = tokens.session(&o, tokens.len());
        for rows in [1, 4, 200] {
            let rows = rows.min(tokens.len());
            assert_eq!(attend(session, rows), attend(&fresh, rows), "{what}, {rows} rows");
        }
    };
    for len in [tokens.len() - 1, 12 * SEGMENT, 12 * SEGMENT - 1, 10 * SEGMENT, 2 * SEGMENT, SEGMENT + 200, 200] {
        let mut session = tokens.session(&o, 400);
        session.truncate(len).unwrap();
        let mut left = tokens.clone();
        left.drain(len, tokens.len());
        check(&session, &left, &format!("truncated to {len}"));
        // Not the one that has attended: trials are carried on.
        let mut session = tokens.session(&o, 400);
        session.truncate(len).unwrap();
        tokens.extend(&mut session, 300);
        check(&session, &tokens, &format!("truncated to {len} and grown again"));
    }
    for (begin, end) in [(0, 1), (0, SEGMENT), (300, 700), (SEGMENT, 2 * SEGMENT), (2200, 2297), (5, 5), (100, 2790)] {
        let mut session = tokens.session(&o, 400);
        session.remove_range(begin, end).unwrap();
        let mut left = tokens.clone();
        left.drain(begin, end);
        check(&session, &left, &format!("without {begin}..{end}"));
    }
    let mut session = tokens.session(&o, 400);
    session.reset();
    let other = Tokens::new(2, [48, 32], 700, 6);
    other.extend(&mut session, 700);
    check(&session, &other, "reset");
}

#[test]
fn parts_do_not_change_the_bits() {
    let tokens = Tokens::new(2, [64, 64], 4 * SEGMENT + 50, 9);
    for mode in [Mode::Accelerated, Mode::Auto] {
        let o = SessionOptions { dense_below: 2 * SEGMENT, ..options(&tokens, 4, mode) };
        let session = tokens.session(&o, 1000);
        for rows in [1, 4, 5, 300, tokens.len()] {
            let (want, all) = attend_all(&session, rows, None, 1);
            for nth in [2, 3, 5] {
                let (have, stats) = attend_all(&session, rows, None, nth);
                assert_eq!(have, want, "{rows} rows in {nth} parts");
                assert_eq!((stats.rows, stats.pairs, stats.cells_opened), (all.rows, all.pairs, all.cells_opened));
            }
        }
    }
}

/// Rows of the storage type are stored as they are: what comes of them is what comes of the same numbers in f32.
#[test]
fn rows_of_the_storage_type_come_as_they_are() {
    let tokens = Tokens::new(2, [40, 24], 2 * SEGMENT + 9, 7);
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let o = SessionOptions { kv_dtype: dtype, ..options(&tokens, 2, Mode::Accelerated) };
        let bits = |x: &f32| match dtype {
            Dtype::F16 => f16::from_f32(*x).to_bits(),
            _ => bf16::from_f32(*x).to_bits(),
        };
        let [k, v] = tokens.part(0, tokens.len()).map(|x| x.iter().map(bits).collect::<Vec<u16>>());
        let of = |x: &[u16], d: usize| {
            // SAFETY: so many numbers of two bytes, borrowed for the call.
            unsafe { Tensor::from_raw(x.as_ptr().cast(), dtype, [1, 2, tokens.len(), d], [0; 3], "kv") }.unwrap()
        };
        let mut session = Session::new_in(&o, &memory(0)).unwrap();
        session.append(of(&k, 40), of(&v, 24)).unwrap();
        session.commit().unwrap();
        let rounded = tokens.session(&o, 100);
        for rows in [1, 100] {
            assert_eq!(attend(&session, rows), attend(&rounded, rows), "{dtype:?}, {rows} rows");
        }
    }
}

#[test]
fn work_memory_for_the_capacity_does_for_every_length() {
    let tokens = Tokens::new(1, [16, 16], 14_000, 19);
    for group in [1, 8] {
        let o = options(&tokens, group, Mode::Accelerated);
        let mut session = Session::new_in(&o, &memory(0)).unwrap();
        for len in [100, 700, 5000, 14_000] {
            let from = session.len();
            tokens.append(&mut session, from, len);
            session.commit().unwrap();
            for rows in [1, 4, 5, 600] {
                // Takes no more than planned, or fails.
                attend(&session, rows.min(len));
            }
        }
    }
}

#[test]
fn a_session_takes_the_planned_bytes() {
    for (dims, capacity) in [([64, 64], 2048), ([40, 24], 257), ([80, 128], 1000)] {
        for mode in [Mode::Accelerated, Mode::Auto] {
            let tokens = Tokens::new(2, dims, 257, 17);
            let o = SessionOptions { capacity, dense_below: 256, ..options(&tokens, 2, mode) };
            let mut plan = Plan::new();
            Session::plan(&o, &mut plan).unwrap();
            let mut with_memory = Plan::new();
            iceformer_core::mem::Memory::plan(&mut with_memory);
            with_memory.add_plan(&plan, 1);
            let bytes = with_memory.finish().unwrap().bytes;
            let mut block = vec![0u8; bytes + 64];
            let skip = block.as_ptr().align_offset(64);
            let mut make = |bytes: usize| {
                let region = core::ptr::NonNull::new(block[skip..].as_mut_ptr()).unwrap();
                // SAFETY: the block outlives what is made in it, which nothing else touches.
                let memory = unsafe { iceformer_core::mem::Memory::region(region, bytes) }?;
                Session::new_in(&o, &memory)
            };
            assert!(make(bytes - 1).is_err());
            let mut session = make(bytes).unwrap();
            tokens.extend(&mut session, 257);
            assert!(attend(&session, 3).out.iter().all(|x| x.is_finite()));
        }
    }
}

/// Decodes the last tokens one by one: (mode, outputs) of every step.
fn decode(tokens: &Tokens, o: &SessionOptions, from: usize, nth: usize) -> Vec<(Mode, Outcome)> {
    let mut session = Session::new_in(o, &memory(0)).unwrap();
    tokens.append(&mut session, 0, from);
    session.commit().unwrap();
    let step = |t| {
        tokens.append(&mut session, t, t + 1);
        session.commit().unwrap();
        let (outcome, stats) = attend_all(&session, 1, None, nth);
        (stats.mode, outcome)
    };
    (from..tokens.len()).map(step).collect()
}

#[test]
fn many_rows_of_a_session_have_the_bits_of_calls() {
    for (heads, group, dims) in [(2, 1, [64, 64]), (1, 4, [40, 24]), (2, 2, [32, 80])] {
        let tokens = Tokens::new(heads, dims, 6 * SEGMENT + 37, 1);
        let o = options(&tokens, group, Mode::Accelerated);
        let session = tokens.session(&o, tokens.len());
        for rows in [65, 130, 300, tokens.len()] {
            assert_eq!(attend(&session, rows), call(&tokens, &o, rows), "{dims:?}, group {group}, {rows} rows");
        }
    }
}

#[test]
fn the_tolerance_is_kept() {
    let tolerance = 0.1;
    for (heads, group, dims) in
        [(1, 1, [32, 32]), (2, 2, [40, 64]), (1, 4, [64, 40]), (1, 8, [80, 80]), (1, 1, [128, 128])]
    {
        let tokens = Tokens::new(heads, dims, 8 * SEGMENT + 80, 10);
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let o = |mode| {
                with(SessionOptions { kv_dtype: dtype, ..options(&tokens, group, mode) }, |o| o.tolerance = tolerance)
            };
            let mut fast = tokens.session(&o(Mode::Accelerated), 500);
            let exact = tokens.session(&o(Mode::Exact), 500);
            for rows in ROWS {
                let what = format!("{dims:?} {dtype:?} group {group} rows {rows}");
                // The first rows are measured; what they find counts from the next commit on.
                attend_all(&fast, rows, None, 1);
                fast.commit().unwrap();
                let (have, stats) = attend_all(&fast, rows, None, 1);
                let queries = (heads * group * rows) as u64;
                assert_eq!((stats.mode, stats.reason, stats.rows), (Mode::Accelerated, Reason::Requested, queries));
                assert!(stats.pairs < stats.pairs_dense, "{what}: {stats:?}");
                hold(&have, &attend(&exact, rows), 2.0 * tolerance, &what);
            }
        }
    }
}

#[test]
fn every_instruction_set_keeps_the_tolerance() {
    let tokens = Tokens::new(1, [72, 40], 5 * SEGMENT + 20, 18);
    for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
        let o = |mode| with(options(&tokens, 2, mode), |o| (o.isa, o.tolerance) = (Some(isa), 0.1));
        let fast = tokens.session(&o(Mode::Accelerated), 300);
        let exact = tokens.session(&o(Mode::Exact), 300);
        for rows in [1, 7, 260] {
            hold(&attend(&fast, rows), &attend(&exact, rows), 0.2, isa.name());
        }
        assert_eq!(attend(&fast, 260), call(&tokens, &o(Mode::Accelerated), 260), "{}", isa.name());
    }
}

/// More rows of a group than 16 bits number.
#[test]
fn groups_of_very_many_heads_are_right() {
    let tokens = Tokens::new(1, [8, 8], 2 * SEGMENT + 9, 20);
    let o = |mode| with(options(&tokens, 2048, mode), |o| o.tolerance = 0.1);
    let [fast, exact] = [Mode::Accelerated, Mode::Exact].map(|mode| tokens.session(&o(mode), 600));
    hold(&attend(&fast, 40), &attend(&exact, 40), 0.2, "2048 heads");
}

#[test]
fn what_is_not_published_is_not_seen() {
    let tokens = Tokens::new(2, [32, 32], 5 * SEGMENT, 4);
    let o = options(&tokens, 1, Mode::Accelerated);
    let mut before = tokens.clone();
    before.drain(2 * SEGMENT + 9, tokens.len());
    let [mut session, mut plain] = [(); 2].map(|()| before.session(&o, 700));
    for rows in [1, 300] {
        let want = attend(&session, rows);
        assert_eq!(attend(&plain, rows), want);
        tokens.append(&mut session, before.len(), tokens.len());
        assert_eq!(attend(&session, rows), want);
        session.roll_back();
        assert_eq!(attend(&session, rows), want);
        // A row that is refused, after others that complete a segment.
        let [mut k, v] = tokens.part(before.len(), tokens.len());
        let n = tokens.len() - before.len();
        k[(2 * n - 1) * 32] = f32::NAN;
        let shape = [1, 2, n, 32];
        assert!(session.append(Tensor::new(&k, shape).unwrap(), Tensor::new(&v, shape).unwrap()).is_err());
        assert!(session.commit().is_err());
        assert_eq!(attend(&session, rows), want);
    }
    tokens.extend(&mut session, 1000);
    tokens.extend(&mut plain, 1000);
    for rows in [300, 1] {
        assert_eq!(attend(&session, rows), attend(&plain, rows));
    }
}

#[test]
fn a_saved_session_comes_back_with_its_bits() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let tokens = Tokens::new(2, [40, 24], 3 * SEGMENT + 9, 7);
        let o = SessionOptions { kv_dtype: dtype, ..options(&tokens, 2, Mode::Accelerated) };
        let mut session = tokens.session(&o, 333);
        let load = |session: &Session| {
            let mut bytes = vec![0; session.save_len()];
            session.save(&mut bytes).unwrap();
            Session::load(&bytes, &memory(0)).unwrap()
        };
        let mut loaded = load(&session);
        let more = Tokens::new(2, [40, 24], session.len() + 260, 8);
        for _ in 0..2 {
            for rows in [1, 5, 300] {
                assert_eq!(attend(&loaded, rows), attend(&session, rows), "{dtype:?}");
            }
            more.extend(&mut session, 100);
            more.extend(&mut loaded, 100);
        }
        // Tokens alone are saved: what comes back is as if nothing had ever been attended.
        let fresh = load(&load(&session));
        for rows in [1, 5, 300] {
            assert_eq!(attend(&load(&session), rows), attend(&fresh, rows), "{dtype:?}");
        }
    }
}

/// A batch goes by what the batches before it found, whoever attended them and however often.
#[test]
fn batches_go_by_each_other_and_keep_their_bits() {
    let tokens = Tokens::new(2, [64, 64], 14 * SEGMENT + 50, 9);
    for mode in [Mode::Accelerated, Mode::Auto] {
        let o = with(SessionOptions { dense_below: SEGMENT, ..options(&tokens, 2, mode) }, |o| o.tolerance = 0.1);
        let [mut one, mut parts, mut twice] = [(); 3].map(|()| Session::new_in(&o, &memory(0)).unwrap());
        let mut opened = 0;
        // Many rows and few in turn.
        for rows in [300, 20, 1].into_iter().cycle() {
            let from = one.len();
            let rows = rows.min(tokens.len() - from);
            for session in [&mut one, &mut parts, &mut twice] {
                tokens.append(session, from, from + rows);
                session.commit().unwrap();
            }
            let (want, stats) = attend_all(&one, rows, None, 1);
            assert_eq!(attend_all(&parts, rows, None, 3).0, want, "{rows} rows from {from} on in three parts");
            for _ in 0..2 {
                assert_eq!(attend(&twice, rows), want, "{rows} rows from {from} on, twice");
            }
            opened += usize::from(stats.cells_opened > 0);
            if one.len() == tokens.len() {
                break;
            }
        }
        assert!(opened >= 6, "{opened} batches opened cells");
    }
}

/// A run of blocks that ends in a few rows, which find nothing: what is noted is of that run, whichever part took it.
#[test]
fn what_rows_leave_behind_does_not_depend_on_parts() {
    let tokens = Tokens::new(3, [16, 16], 2048 + 3 + 800, 23);
    let o = options(&tokens, 1, Mode::Accelerated);
    let after = |nth: usize| {
        let mut session = Session::new_in(&o, &memory(0)).unwrap();
        tokens.append(&mut session, 0, tokens.len() - 1);
        session.commit().unwrap();
        attend_all(&session, 2048 + 3, None, nth);
        tokens.extend(&mut session, 1);
        attend(&session, 1)
    };
    let want = after(1);
    for nth in [2, 3, 6] {
        assert_eq!(after(nth), want, "{nth} parts");
    }
}

/// Keys that rows found heavy go with the tokens that are cut away.
#[test]
fn sessions_that_have_attended_are_cut_too() {
    let tokens = Tokens::new(2, [32, 24], 9 * SEGMENT + 40, 24);
    let o = options(&tokens, 2, Mode::Accelerated);
    let exact = |tokens: &Tokens, rows| attend(&tokens.session(&options(tokens, 2, Mode::Exact), 999), rows);
    let mut session = Session::new_in(&o, &memory(0)).unwrap();
    for chunk in [1500, 300, 20, 1, 1, 1] {
        let from = session.len();
        tokens.append(&mut session, from, from + chunk);
        session.commit().unwrap();
        attend(&session, chunk);
    }
    tokens.extend(&mut session, 100);
    let mut left = tokens.clone();
    for (begin, end) in [(2000, 2001), (700, 900), (0, 300), (1024, 1300), (500, 800), (100, 700)] {
        let end = end.min(session.len());
        session.remove_range(begin, end).unwrap();
        left.drain(begin, end);
        for rows in [1, 100] {
            hold(&attend(&session, rows), &exact(&left, rows), 0.2, &format!("without {begin}..{end}, {rows} rows"));
        }
    }
    session.reset();
    tokens.extend(&mut session, 1000);
    for rows in [1, 100] {
        assert_eq!(attend(&session, rows), attend(&tokens.session(&o, 1000), rows), "reset");
    }
}

#[test]
fn every_mask_keeps_the_tolerance() {
    let tokens = Tokens::new(1, [40, 40], 8 * SEGMENT + 50, 11);
    let (n, tolerance) = (tokens.len(), 0.1);
    for rows in [1, 3, 70, 300] {
        let prefix: Vec<u64> = (0..rows).map(|i| (n - 3 * i) as u64).collect();
        let ragged: Vec<u64> = (0..rows).map(|i| (i * 97 % (n + 1)) as u64).collect();
        let keep: Vec<u8> = (0..n).map(|j| u8::from(!(j % 300 == 7 || (500..520).contains(&j)))).collect();
        // Another sequence's tokens: whole segments that no row sees.
        let apart: Vec<u8> = (0..n).map(|j| u8::from(!(SEGMENT - 9..3 * SEGMENT + 5).contains(&j))).collect();
        let mut bias = vec![0.0; 2 * rows * n];
        for (x, r) in bias.chunks_mut(n).flat_map(|row| &mut row[300..400]).zip(noise(2 * rows * 100, 12, 2.0)) {
            *x = if r > 1.5 { f32::NEG_INFINITY } else { r };
        }
        let biased = Some(Mask::Additive(Tensor::new(&bias, [1, 2, rows, n]).unwrap()));
        let masks = [
            None,
            Some(Mask::Keys(&apart)),
            Some(Mask::None),
            Some(Mask::Causal { q_pos0: 100 }),
            Some(Mask::Prefix(&prefix)),
            Some(Mask::Prefix(&ragged)),
            Some(Mask::Keys(&keep)),
            Some(Mask::CausalKeys { q_pos0: (n - rows) as u64, keep: &keep }),
            biased,
        ];
        for (window, sinks, softcap) in [(0, 0, 0.0), (1500, 0, 0.0), (1400, 4, 0.0), (0, 0, 3.0), (1400, 300, 5.0)] {
            let o = |mode| {
                with(options(&tokens, 2, mode), |o| {
                    (o.tolerance, o.window, o.sinks, o.softcap) = (tolerance, window, sinks, softcap);
                })
            };
            let fast = tokens.session(&o(Mode::Accelerated), 400);
            let exact = tokens.session(&o(Mode::Exact), 400);
            for mask in masks {
                let (have, stats) = attend_all(&fast, rows, mask, 1);
                let (want, dense) = attend_all(&exact, rows, mask, 1);
                assert_eq!(stats.pairs_dense, dense.pairs_dense, "{mask:?}");
                let what = format!("{rows} rows, window {window}, sinks {sinks}, softcap {softcap}, {mask:?}");
                hold(&have, &want, 2.0 * tolerance, &what);
            }
        }
    }
}

#[test]
fn alike_keys_are_estimated_exactly() {
    // Every segment: 16 keys, each 16 times.
    let mut tokens = Tokens::new(1, [64, 32], 4 * SEGMENT + 50, 13);
    let kinds = noise(16 * 64, 14, 2.0);
    for (t, row) in tokens.k[0].chunks_mut(64).enumerate() {
        row.copy_from_slice(&kinds[t % 16 * 64..][..64]);
    }
    let mut fast = tokens.session(&options(&tokens, 2, Mode::Accelerated), 400);
    let exact = tokens.session(&options(&tokens, 2, Mode::Exact), 400);
    for rows in [1, 4, 300] {
        // The first rows are measured; what they find counts from the next commit on.
        attend_all(&fast, rows, Some(Mask::None), 1);
        fast.commit().unwrap();
        let (have, stats) = attend_all(&fast, rows, Some(Mask::None), 1);
        let (want, _) = attend_all(&exact, rows, Some(Mask::None), 1);
        hold(&have, &want, 2e-5, "alike keys");
        assert!(stats.pairs < stats.pairs_dense);
    }
}

#[test]
fn auto_is_exact_where_cells_do_not_help_and_says_why() {
    let tokens = Tokens::new(1, [64, 64], 2048 + 10, 15);
    // Keys that no model made are hard to estimate: a tolerance that lets it happen.
    let o = with(options(&tokens, 2, Mode::Auto), |o| o.tolerance = 0.5);
    // A few rows of fewer than 4,096 tokens are read exactly unless the session says what is short itself.
    let mut session = tokens.session(&SessionOptions { dense_below: 2048, ..o }, 1000);
    let plain = tokens.session(&o, 1000);
    let ran = |s: &Session, rows, mask: Option<Mask<'_>>| {
        let (_, stats) = attend_all(s, rows, mask, 1);
        (stats.mode, stats.reason)
    };
    let accelerated = (Mode::Accelerated, Reason::Cheaper);
    let short = (Mode::Exact, Reason::Short);
    assert_ne!(ran(&plain, 200, None), short);
    for rows in [1, 4, 10] {
        assert_eq!(ran(&plain, rows, None), short);
        assert_eq!(ran(&session, rows, None), accelerated);
        assert_eq!(ran(&session, rows, Some(Mask::Causal { q_pos0: 1000 })), short);
        let bias = vec![0.1; rows * tokens.len()];
        let bias = Mask::Additive(Tensor::new(&bias, [1, 1, rows, tokens.len()]).unwrap());
        assert_eq!(ran(&session, rows, Some(bias)), accelerated);
        let certified = tokens.session(
            &SessionOptions { dense_below: 2048, ..with(o, |o| (o.certificate, o.verified) = (true, false)) },
            1000,
        );
        assert_eq!(ran(&certified, rows, None), (Mode::Exact, Reason::OnlyWay));
    }
    let padded = vec![0; tokens.len()];
    assert_eq!(ran(&session, 1, Some(Mask::Keys(&padded))), (Mode::Exact, Reason::Diffuse));
    session.truncate(2047).unwrap();
    assert_eq!(ran(&session, 1, None), short);
    let narrow = tokens.session(&with(o, |o| o.window = 500), 1000);
    assert_eq!(ran(&narrow, 1, None), short);
    let late = tokens.session(&SessionOptions { dense_below: 2059, ..o }, 1000);
    assert_eq!(ran(&late, 1, None), short);
    // Rows that do not see all that is kept for few of them.
    let early = tokens.session(&SessionOptions { dense_below: 300, ..o }, 1000);
    assert_eq!(ran(&early, 1, Some(Mask::Causal { q_pos0: 1000 })), (Mode::Exact, Reason::Diffuse));
    let asked = tokens.session(&SessionOptions { dense_below: 2059, ..options(&tokens, 2, Mode::Accelerated) }, 1000);
    assert_eq!(ran(&asked, 1, None), short);
    // No room for a segment: nothing is kept, and every mode works.
    let few = Tokens::new(1, [64, 64], 100, 16);
    for mode in [Mode::Auto, Mode::Accelerated] {
        let o = SessionOptions { capacity: 255, ..options(&few, 1, mode) };
        assert_eq!(ran(&few.session(&o, 100), 3, None), short);
        let exact = SessionOptions { capacity: 255, ..options(&few, 1, Mode::Exact) };
        let bytes = |o: &SessionOptions| {
            let mut plan = Plan::new();
            Session::plan(o, &mut plan).unwrap();
            plan.finish().unwrap().bytes
        };
        assert_eq!(bytes(&o), bytes(&exact));
    }
}

/// What cells add to keys and values in f16 for every token: means of 16 keys and values each, in f32 as built and in f16 as few rows meet
/// them. Sessions with bounds keep none.
#[test]
fn cells_take_less_than_a_quarter_of_the_cache() {
    for dim in [64, 128] {
        let bytes_for = |capacity, mode, certificate| {
            let o = SessionOptions {
                heads_q: 2,
                heads_kv: 2,
                dim_k: dim,
                dim_v: dim,
                capacity,
                kv_dtype: Dtype::F16,
                attention: AttentionOptions { mode, certificate, ..AttentionOptions::default() },
                dense_below: 0,
            };
            let mut plan = Plan::new();
            Session::plan(&o, &mut plan).unwrap();
            plan.finish().unwrap().bytes as f64
        };
        let bytes = |mode, certificate| bytes_for(65_536, mode, certificate) - bytes_for(32_768, mode, certificate);
        let cache = bytes(Mode::Exact, false);
        let [plain, certified] = [false, true].map(|certificate| bytes(Mode::Accelerated, certificate) / cache - 1.0);
        assert!(plain < 0.25 && plain > 0.15, "{dim}: {plain}");
        assert_eq!(certified, 0.0, "{dim}");
    }
}

#[test]
fn decoding_stops_asking_cells_that_do_not_serve_and_goes_on_asking_those_that_do() {
    let (from, steps) = (9 * SEGMENT, 150);
    let mut tokens = Tokens::new(2, [32, 32], from + steps, 61);
    let auto = SessionOptions { dense_below: 2048, ..options(&tokens, 2, Mode::Auto) };
    let exact = decode(&tokens, &options(&tokens, 2, Mode::Exact), from, 1);
    let ran = decode(&tokens, &with(auto, |o| o.tolerance = 0.3), from, 1);
    assert!(ran.iter().all(|(mode, _)| *mode == Mode::Accelerated));
    let outs = |steps: &[(Mode, Outcome)]| steps.iter().map(|(_, of)| of.out.clone()).collect::<Vec<_>>();
    let off = error(&outs(&ran), &outs(&exact));
    assert!(off < 0.6, "{off}");
    // Noise: what is left of values that cancel is no estimate.
    for (h, (k, v)) in tokens.k.iter_mut().zip(&mut tokens.v).enumerate() {
        *k = noise(k.len(), 62 + h as u64, 1.0);
        *v = noise(v.len(), 64 + h as u64, 1.0);
    }
    let exact = decode(&tokens, &options(&tokens, 2, Mode::Exact), from, 1);
    let ran = decode(&tokens, &auto, from, 1);
    // Every head is looked at once in 128 tokens, and then rests for longer than that.
    for (i, ((mode, have), (_, want))) in ran.iter().zip(&exact).enumerate().skip(129) {
        assert_eq!(*mode, Mode::Exact, "step {i}");
        assert_eq!(have, want, "step {i}");
    }
    // Whoever attends: one part or several.
    for ((_, have), (_, want)) in decode(&tokens, &auto, from, 3).iter().zip(&ran) {
        assert_eq!(have, want);
    }
}

/// Rows of a prompt know keys of their own, steps only those that are kept: the first step after a prompt is measured, whatever the prompt's
/// rows have borne.
#[test]
fn the_first_step_after_a_prompt_is_measured() {
    let (from, batch) = (8 * SEGMENT, 2 * SEGMENT);
    let tokens = Tokens::new(2, [32, 32], from + batch + 1, 67);
    let o = SessionOptions { dense_below: 1024, ..options(&tokens, 2, Mode::Accelerated) };
    let mut session = Session::new_in(&o, &memory(0)).unwrap();
    tokens.append(&mut session, 0, from + batch);
    session.commit().unwrap();
    let (_, prompt) = attend_all(&session, batch, None, 1);
    assert!(prompt.measured.rows() > 0 && prompt.pairs < prompt.pairs_dense, "{prompt:?}");
    tokens.append(&mut session, from + batch, from + batch + 1);
    session.commit().unwrap();
    let (_, step) = attend_all(&session, 1, None, 1);
    assert_eq!(step.measured.rows(), 2, "a row of every KV head: {step:?}");
}
