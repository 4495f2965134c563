//! Saved objects with bytes changed: raw, or with the checksum made right again, so that what lies behind it is reached.
//! Expected: a refusal, or an object that can be used.

use crate::twin::noise;
use crate::{Budget, give, take};
use arbitrary::{Result, Unstructured};
use iceformer::*;
use iceformer_core::attention::{AttentionOptions, Mode, Session, SessionOptions};
use iceformer_core::dci::{Index, IndexOptions, Metric};
use iceformer_core::mem::{Rows, Tensor};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

/// Honest bytes to start from: indices, then sessions.
fn honest() -> &'static [Vec<Vec<u8>>; 2] {
    static SAVED: OnceLock<[Vec<Vec<u8>>; 2]> = OnceLock::new();
    SAVED.get_or_init(|| {
        let fitted = || {
            let engine = iceformer_core::dci::Engine::Cells;
            let mut index = Index::new(&IndexOptions { engine, ..IndexOptions::new(2) }).unwrap();
            index.insert(Rows::new(&noise(2 * 520, 1, 1.0), 2).unwrap(), None).unwrap();
            index.fit(Some(Rows::new(&noise(2 * 130, 4, 1.0), 2).unwrap())).unwrap();
            let mut bytes = vec![0; index.save_len()];
            index.save(&mut bytes).unwrap();
            bytes
        };
        let index = |levels, metric, n: usize| {
            let mut index = Index::new(&IndexOptions { levels, metric, ..IndexOptions::new(3) }).unwrap();
            index.insert(Rows::new(&noise(3 * n, 1, 1.0), 3).unwrap(), None).unwrap();
            let mut bytes = vec![0; index.save_len()];
            index.save(&mut bytes).unwrap();
            bytes
        };
        let session = |mode, n: usize| {
            let o = SessionOptions {
                heads_q: 2,
                heads_kv: 1,
                dim_k: 3,
                dim_v: 2,
                capacity: n + 5,
                kv_dtype: iceformer_core::mem::Dtype::F16,
                attention: AttentionOptions { mode, ..AttentionOptions::default() },
                dense_below: 0,
            };
            let mut s = Session::new(&o).unwrap();
            let (k, v) = (noise(3 * n, 2, 1.0), noise(2 * n, 3, 1.0));
            s.append(Tensor::new(&k, [1, 1, n, 3]).unwrap(), Tensor::new(&v, [1, 1, n, 2]).unwrap()).unwrap();
            s.commit().unwrap();
            let mut bytes = vec![0; s.save_len()];
            s.save(&mut bytes).unwrap();
            bytes
        };
        [
            vec![index(1, Metric::L2, 0), index(3, Metric::InnerProduct, 20), index(2, Metric::L2, 9), fitted()],
            vec![session(Mode::Exact, 4), session(Mode::TopK, 12), session(Mode::Accelerated, 300)],
        ]
    })
}

pub fn run(data: &[u8]) {
    let _ = program(&mut Unstructured::new(data));
}

fn program(u: &mut Unstructured<'_>) -> Result<()> {
    let session = u.arbitrary::<bool>()?;
    let bytes = if u.ratio(1, 8)? {
        u.bytes(u.len())?.to_vec()
    } else {
        let mut bytes = u.choose(&honest()[usize::from(session)])?.clone();
        for _ in 0..u.int_in_range(1..=5)? {
            // Headers are where the decisions are.
            let most = if u.arbitrary()? { bytes.len().min(144) } else { bytes.len() };
            let at = u.choose_index(most)?;
            match u.int_in_range(0..=3)? {
                0 => bytes[at] ^= 1 << u.int_in_range(0..=7)?,
                1 => bytes[at] = u.arbitrary()?,
                2 => {
                    let value = u.choose(&[0u64, 1, u64::MAX, 1 << 31, 1 << 63, 0x7fc0_0000, 0x7f80_0000_7f80_0000])?;
                    let n = if u.arbitrary()? { 4 } else { 8 };
                    let end = (at / 4 * 4 + n).min(bytes.len());
                    bytes[at / 4 * 4..end].copy_from_slice(&value.to_le_bytes()[..end - at / 4 * 4]);
                }
                _ if u.ratio(1, 4)? => bytes.truncate(at.max(1)),
                _ => {}
            }
        }
        if u.ratio(7, 8)? && bytes.len() > 4 {
            let (body, sum) = bytes.split_last_chunk_mut::<4>().expect("long enough");
            *sum = crc32fast::hash(body).to_le_bytes();
        }
        bytes
    };
    let budget = Budget::new(32 << 20);
    let hooks = ice_allocator {
        struct_size: size_of::<ice_allocator>() as u32,
        user: budget.user(),
        alloc: Some(take),
        free: Some(give),
    };
    if session {
        load_session(&bytes, &hooks)
    } else {
        load_index(&bytes, &hooks)
    }
    assert_eq!(budget.live.get(), 0, "leaked");
    Ok(())
}

/// Loading gives the statuses that the header lists, and no others.
#[track_caller]
fn listed(status: ice_status) -> bool {
    let listed = [ICE_OK, ICE_ERR_BUFFER, ICE_ERR_UNSUPPORTED, ICE_ERR_NO_MEMORY, ICE_ERR_BUDGET];
    assert!(listed.contains(&status), "status {status}");
    status == ICE_OK
}

/// Hands bytes over piece by piece.
struct Pieces<'a>(Cell<&'a [u8]>);

extern "C" fn pieces(user: *mut c_void, to: *mut c_void, bytes: usize) -> usize {
    assert!(bytes <= 1024);
    // SAFETY: `user` is the source, alive and on this thread; `to` is writable for `bytes` bytes.
    unsafe {
        let source = &*user.cast::<Pieces<'_>>();
        let (now, later) = source.0.get().split_at(bytes.min(source.0.get().len()));
        to.cast::<u8>().copy_from(now.as_ptr(), now.len());
        source.0.set(later);
        now.len()
    }
}

type LoadWith<T> = unsafe extern "C" fn(*const ice_load_options, *mut *mut T, *mut ice_error) -> ice_status;

/// Through a function, without a limit and within one: what loads from memory loads so, too, and takes no more than the limit.
fn streamed<T>(bytes: &[u8], hooks: &ice_allocator, loaded: bool, load: LoadWith<T>) -> [*mut T; 2] {
    // SAFETY: the hooks' user is their budget.
    let budget = unsafe { &*hooks.user.cast::<Budget>() };
    [0, 60 << 10].map(|memory_limit| {
        let (before, source, mut object) = (budget.bytes.get(), Pieces(Cell::new(bytes)), null_mut());
        // SAFETY: the source and the hooks outlive the call, and the options are written by their function.
        let fine = unsafe {
            let mut o = std::mem::zeroed();
            ice_load_options_init(&mut o);
            o.read = Some(pieces);
            (o.user, o.allocator, o.memory_limit) =
                (std::ptr::from_ref(&source).cast_mut().cast(), hooks, memory_limit);
            listed(load(&o, &mut object, null_mut()))
        };
        assert!(fine != object.is_null() && (fine || !loaded || memory_limit > 0));
        assert!(memory_limit == 0 || before - budget.bytes.get() <= memory_limit);
        object
    })
}

fn known(status: ice_status) -> bool {
    assert!(status <= ICE_OK && status > ICE_ERR_INTERNAL, "status {status}");
    status == ICE_OK
}

/// Memory for a `_load_in`, if what the bytes ask for is no more than hostile sizes may cost.
fn region(bytes: usize) -> Option<Vec<u128>> {
    (bytes <= 32 << 20).then(|| vec![0u128; bytes.div_ceil(16) + 4])
}

fn at64(v: &mut [u128]) -> *mut std::ffi::c_void {
    let p = v.as_mut_ptr().cast::<u8>();
    p.wrapping_add(p.align_offset(64)).cast()
}

fn load_index(bytes: &[u8], hooks: &ice_allocator) {
    let (buf, len) = (bytes.as_ptr().cast(), bytes.len());
    let (mut need, mut align, mut ix) = (0, 0, null_mut());
    // SAFETY here and below: live objects and buffers of the sizes given.
    let sized = listed(unsafe { ice_index_load_required(buf, len, &mut need, &mut align, null_mut()) });
    let loaded = listed(unsafe { ice_index_load(buf, len, hooks, &mut ix, null_mut()) });
    assert!(sized || !loaded);
    if loaded {
        use_index(ix);
        unsafe { ice_index_free(ix) };
    }
    for ix in streamed(bytes, hooks, loaded, ice_index_load_with).into_iter().filter(|ix| !ix.is_null()) {
        use_index(ix);
        unsafe { ice_index_free(ix) };
    }
    if let Some(mut memory) = region(need).filter(|_| sized) {
        let mut inside = null_mut();
        let fine = listed(unsafe { ice_index_load_in(at64(&mut memory), need, buf, len, &mut inside, null_mut()) });
        assert!(fine == loaded || !loaded);
        if fine {
            use_index(inside);
            unsafe { ice_index_free(inside) };
        }
    }
    // In place: the same verdict, and nothing written.
    let mut place = vec![0u64; len / 8 + 1];
    unsafe { place.as_mut_ptr().cast::<u8>().copy_from(bytes.as_ptr(), len) };
    let before = place.clone();
    let mut view = null_mut();
    if listed(unsafe { ice_index_view(place.as_ptr().cast(), len, hooks, &mut view, null_mut()) }) {
        use_index(view);
        unsafe { ice_index_free(view) };
    } else {
        // It takes less memory than loading.
        assert!(!loaded);
    }
    assert!(place == before);
}

fn use_index(ix: *mut ice_index) {
    unsafe {
        let (dim, n) = (ice_index_dim(ix), ice_index_len(ix));
        let q = noise(dim, 5, 1.0);
        let mut o = std::mem::zeroed();
        ice_query_options_init(&mut o, 4);
        (o.visit_fraction, o.retrieve_fraction) = (1.0, 1.0);
        let mut out = [ice_neighbor { id: 0, score: 0.0 }; 4];
        let mut count = 0;
        for f in [ice_index_query, ice_index_query_exact] {
            if known(f(ix, null_mut(), q.as_ptr(), 1, &o, out.as_mut_ptr(), &mut count, null_mut())) {
                assert!(count as usize <= n.min(4));
            }
        }
        known(ice_index_insert(ix, q.as_ptr(), 1, null(), null_mut()));
        known(ice_index_remove(ix, [0, 1].as_ptr(), 2, &mut 0));
        let mut need = 0;
        assert!(known(ice_index_save(ix, null_mut(), 0, &mut need)));
        let mut again = vec![0u8; need];
        assert!(known(ice_index_save(ix, again.as_mut_ptr().cast(), need, null_mut())));
    }
}

fn load_session(bytes: &[u8], hooks: &ice_allocator) {
    let (buf, len) = (bytes.as_ptr().cast(), bytes.len());
    let (mut need, mut align, mut s) = (0, 0, null_mut());
    let sized = listed(unsafe { ice_session_load_required(buf, len, &mut need, &mut align, null_mut()) });
    let loaded = listed(unsafe { ice_session_load(buf, len, hooks, &mut s, null_mut()) });
    assert!(sized || !loaded);
    if loaded {
        use_session(s, bytes);
        unsafe { ice_session_free(s) };
    }
    for s in streamed(bytes, hooks, loaded, ice_session_load_with).into_iter().filter(|s| !s.is_null()) {
        use_session(s, bytes);
        unsafe { ice_session_free(s) };
    }
    if let Some(mut memory) = region(need).filter(|_| sized) {
        let mut inside = null_mut();
        let fine = listed(unsafe { ice_session_load_in(at64(&mut memory), need, buf, len, &mut inside, null_mut()) });
        assert!(fine == loaded || !loaded);
        if fine {
            use_session(inside, bytes);
            unsafe { ice_session_free(inside) };
        }
    }
}

/// Attends one row if the shape that the bytes describe is small; shrinks and saves in any case.
fn use_session(s: *mut ice_session, bytes: &[u8]) {
    unsafe {
        let tensor = |p: *const f32| ice_tensor {
            data: p.cast(),
            dtype: ICE_F32,
            row_stride: 0,
            head_stride: 0,
            batch_stride: 0,
        };
        let (mut work, mut align) = (0, 0);
        // The handle does not tell heads and dimensions: the header does, behind magic and version.
        let word = |i: usize| u32::from_le_bytes(bytes[12 + 4 * i..][..4].try_into().expect("four")) as usize;
        let room = 1 << 16;
        let small = word(0).saturating_mul(word(2).max(word(3))) <= room;
        let q = noise(room, 6, 1.0);
        let mut out = vec![0f32; room];
        let o = ice_tensor_mut {
            data: out.as_mut_ptr().cast(),
            dtype: ICE_F32,
            row_stride: 0,
            head_stride: 0,
            batch_stride: 0,
        };
        let modest = known(ice_session_work_required(s, 1, 1, &mut work, &mut align)) && work < 1 << 20;
        if small && modest && ice_session_len(s) > 0 {
            known(ice_session_attend(
                s,
                &tensor(q.as_ptr()),
                1,
                null(),
                &o,
                null_mut(),
                null_mut(),
                0,
                0,
                1,
                null_mut(),
                null_mut(),
            ));
        }
        known(ice_session_truncate(s, ice_session_len(s) / 2));
        let mut need = 0;
        assert!(known(ice_session_save(s, null_mut(), 0, &mut need)));
        let mut again = vec![0u8; need];
        assert!(known(ice_session_save(s, again.as_mut_ptr().cast(), need, null_mut())));
    }
}
