//! Sessions: a KV cache with its index, appended to and attended by many threads without a lock.

use crate::alloc_hook::{Source, check_place, work as work_memory};
use crate::attention::{DEFAULT_OPTIONS, stats_output};
use crate::cast::{self, product};
use crate::memory::put_layout;
use crate::object::{self, Handle, Object, live, shared};
use crate::overlap::{self, Place};
use crate::types::*;
use crate::view::{self, names, tensor, tensor_mut};
use crate::{guard, memory};
use core::ffi::c_void;
use core::ptr::{NonNull, null};
use iceformer_core::attention::{Attend, HeadCache, Mask, Session, SessionOptions};
use iceformer_core::mem::{Layout, Plan};
use iceformer_core::{Error, Result, Status};

impl Handle for ice_session {
    type Inner = Parts;
    const MAGIC: u32 = object::SESSION;
    const NAME: &'static str = "session";
}

/// What a session handle holds. The heads and shape are kept beside the session so that a partitioned append reaches
/// its own heads without a reference to anything another part writes.
pub(crate) struct Parts {
    pub(crate) session: Session,
    heads: *mut HeadCache,
    shape: Shape,
}

#[derive(Clone, Copy)]
struct Shape {
    heads: usize,
    dim_k: usize,
    dim_v: usize,
}

impl Parts {
    pub(crate) fn new(mut session: Session) -> Parts {
        let o = session.options();
        let (dim_k, dim_v) = (o.dim_k, o.dim_v);
        let heads = session.heads_mut().len();
        Parts { session, heads: core::ptr::null_mut(), shape: Shape { heads, dim_k, dim_v } }
    }

    /// Takes the heads' address again: after the session has been moved or used exclusively.
    pub(crate) fn capture(&mut self) {
        let heads = self.session.heads_mut();
        self.shape.heads = heads.len();
        self.heads = heads.as_mut_ptr();
    }
}

/// An exclusive call.
///
/// # Safety
/// As [`object::exclusive`].
unsafe fn exclusive<T>(session: *mut ice_session, body: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
    // SAFETY: passed on.
    let mut parts = unsafe { object::exclusive(session)? };
    let result = body(&mut parts.session);
    parts.capture();
    result
}

/// Hands a finished object out.
///
/// # Safety
/// `object` is fresh.
pub(crate) unsafe fn publish(mut object: NonNull<Object<ice_session>>, out: NonNull<*mut ice_session>) {
    // SAFETY: nobody else knows the object yet; `out` was checked.
    unsafe {
        object.as_mut().inner.capture();
        out.write(object.as_ptr().cast());
    }
}

/// Prepares session options: attention options initialised, everything else 0. NULL does nothing.
///
/// Threads: any. Allocates: never. Since 0.1.
///
/// # Safety
/// `options` is NULL or writable for an ice_session_options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_options_init(options: *mut ice_session_options) {
    let value = ice_session_options {
        struct_size: size_of::<ice_session_options>() as u32,
        heads_q: 0,
        heads_kv: 0,
        dim_k: 0,
        dim_v: 0,
        kv_dtype: ICE_F32,
        capacity: 0,
        dense_below: 0,
        memory_limit: 0,
        allocator: null(),
        attention: DEFAULT_OPTIONS,
    };
    // SAFETY: passed on.
    unsafe { cast::init(options, value) };
}

/// Options, memory limit, and the allocator as given.
///
/// # Safety
/// As [`cast::sized`].
unsafe fn session_options(p: *const ice_session_options) -> Result<(SessionOptions, usize, *const ice_allocator)> {
    // SAFETY: passed on.
    let o = unsafe { cast::sized(p, "options")? };
    cast::embedded::<ice_attention_options>(o.attention.struct_size, "options.attention")?;
    let at_least_one = |field, x: u32| match x {
        0 => Err(Error::new(Status::Shape, field, "must be at least 1").value(0)),
        x => Ok(x as usize),
    };
    let heads_kv = at_least_one("heads_kv", o.heads_kv)?;
    let heads_q = if o.heads_q == 0 { heads_kv } else { o.heads_q as usize };
    let dim_k = at_least_one("dim_k", o.dim_k)?;
    if !heads_q.is_multiple_of(heads_kv) {
        return Err(Error::new(Status::Shape, "heads_kv", "does not divide heads_q").value(heads_kv as u64));
    }
    let options = SessionOptions {
        heads_q,
        heads_kv,
        dim_k,
        dim_v: if o.dim_v == 0 { dim_k } else { o.dim_v as usize },
        capacity: o.capacity,
        kv_dtype: view::dtype(o.kv_dtype, "kv_dtype")?,
        attention: view::attention_options(&o.attention)?,
        dense_below: o.dense_below,
    };
    options.attention.resolve(dim_k, o.capacity)?;
    Ok((options, o.memory_limit, o.allocator))
}

pub(crate) fn layout(options: &SessionOptions) -> Result<Layout> {
    object::plan::<ice_session>(|plan| Session::plan(options, plan))
}

/// Bytes and alignment of the memory that ice_session_new_in needs for these options.
///
/// @param bytes, align  outputs, in bytes.
/// Errors: ICE_ERR_ARGUMENT, ICE_ERR_SHAPE (field and value), ICE_ERR_UNSUPPORTED, ICE_ERR_ABI, ICE_ERR_NO_MEMORY (too
/// large for the address space).
/// Threads: any. Allocates: never. Cost: O(heads_kv). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_required(
    options: *const ice_session_options,
    bytes: *mut usize,
    align: *mut usize,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_session_required", err, || {
            let (options, ..) = session_options(options)?;
            put_layout(|| layout(&options), bytes, align)
        })
    }
}

/// Makes an empty session.
///
/// @param out  receives the session; free it with ice_session_free.
/// Ownership: options and allocator are copied; what the allocator points to must outlive the session.
/// Errors: as ice_session_required, ICE_ERR_BUDGET.
/// Threads: any. Allocates: may (everything it will ever need). Cost: O(capacity). Since 0.1.
///
/// # Safety
/// Pointers are valid as described; the allocator keeps its contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_new(
    options: *const ice_session_options,
    out: *mut *mut ice_session,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_session_new", err, || {
            let (options, limit, allocator) = session_options(options)?;
            let out = cast::output(out, "out")?;
            let source = Source::from_c(allocator)?;
            let make = |m: &_| Session::new_in(&options, m).map(Parts::new);
            publish(object::create::<ice_session>(source, limit, make)?, out);
            Ok(())
        })
    }
}

/// Makes an empty session wholly inside caller memory.
///
/// @param mem    aligned to 64 bytes; stays in place and untouched until ice_session_free.
/// @param bytes  at least what ice_session_required says.
/// Ownership: `mem` stays the caller's and is not freed by ice_session_free.
/// Errors: as ice_session_new, ICE_ERR_ALIGNMENT, ICE_ERR_BUFFER (need and have).
/// Threads: any. Allocates: never. Cost: O(capacity). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_new_in(
    mem: *mut c_void,
    bytes: usize,
    options: *const ice_session_options,
    out: *mut *mut ice_session,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_session_new_in", err, || {
            let (options, limit, _) = session_options(options)?;
            let out = cast::output(out, "out")?;
            let need = layout(&options)?;
            let make = |m: &_| Session::new_in(&options, m).map(Parts::new);
            publish(object::create_in::<ice_session>(mem.cast(), bytes, need, limit, make)?, out);
            Ok(())
        })
    }
}

/// Frees a session; caller memory it was made in is the caller's again. NULL does nothing.
///
/// Threads: exclusive. Allocates: never. Since 0.1.
///
/// # Safety
/// `session` is NULL or came from this library and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_free(session: *mut ice_session) {
    // SAFETY: passed on by the caller.
    guard::plain(|| unsafe {
        object::free(session);
        Ok(())
    });
}

fn check_part(ith: u32, nth: u32) -> Result<()> {
    if nth == 0 {
        return Err(Error::new(Status::Argument, "nth", "must be at least 1").value(0));
    }
    if ith >= nth {
        return Err(Error::new(Status::Argument, "ith", "must be below nth").value(ith.into()));
    }
    Ok(())
}

/// Part `ith` of `n` things in `nth` contiguous ranges.
fn part(n: usize, ith: u32, nth: u32) -> core::ops::Range<usize> {
    let (ith, nth) = (ith as usize, nth as usize);
    // The first n % nth parts take one more.
    let cut = |i: usize| n / nth * i + (n % nth).min(i);
    cut(ith)..cut(ith + 1)
}

/// Part `ith` of appending `n` tokens. They are seen by nobody until ice_session_commit.
///
/// Shapes: k [heads_kv, n, dim_k]; v [heads_kv, n, dim_v]; batch strides are not used.
/// @param ith, nth  part and number of parts; heads are split in contiguous ranges, parts beyond the heads are empty.
/// Ownership: everything is copied.
/// Errors: ICE_ERR_NOT_FINITE (row), ICE_ERR_CAPACITY, ICE_ERR_STRIDE, ICE_ERR_ALIGNMENT. After one of these in any part
/// ice_session_commit takes all parts back. ICE_ERR_ARGUMENT (ith, nth): no part is touched. ICE_ERR_STATE: the part was
/// appended already and waits for a commit; it stays as it is.
/// Threads: partitioned. Allocates: never. Cost: O(n (dim_k + dim_v)) per head; in accelerated and auto mode every 256th
/// token also gathers its segment into cells, O(256 (dim_k^2 / 8 + dim_k + dim_v)). The bits do not depend on how tokens
/// are cut into appends. Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_append(
    session: *mut ice_session,
    k: *const ice_tensor,
    v: *const ice_tensor,
    n: usize,
    ith: u32,
    nth: u32,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_session_append", err, || {
            let object = live(session)?.as_ptr();
            check_part(ith, nth)?;
            // Read field by field: other parts are writing their heads now.
            let heads = (&raw const (*object).inner.heads).read();
            let shape = (&raw const (*object).inner.shape).read();
            let views = || {
                let (k, v) = (cast::pointer(k, "k")?.as_ref(), cast::pointer(v, "v")?.as_ref());
                let k = tensor(k, [1, shape.heads, n, shape.dim_k], names!("k"))?;
                Ok((k, tensor(v, [1, shape.heads, n, shape.dim_v], names!("v"))?))
            };
            let views = views();
            if views.is_ok() {
                // Heads of one part belong to nobody else.
                for h in part(shape.heads, ith, nth) {
                    let pending = (*heads.add(h)).pending();
                    if pending > 0 {
                        let e = Error::new(Status::State, "session", "this part was appended already: commit first");
                        return Err(e.value(pending as u64));
                    }
                }
            }
            for h in part(shape.heads, ith, nth) {
                // Heads of one part belong to nobody else.
                let head = &mut *heads.add(h);
                match views {
                    Ok((k, v)) => head.append(k.head(0, h), v.head(0, h))?,
                    Err(e) => head.fail(e),
                }
            }
            views.map(drop)
        })
    }
}

/// Publishes what all parts appended, or takes all of it back if one part failed or is missing.
///
/// Errors: that of a part that failed, ICE_ERR_STATE (a part is missing); the session is as before the appends then.
/// Threads: exclusive. Allocates: never. Cost: O(1) per head, and O(len (dim_k + dim_v) / 16 + dim_k^2) when a segment of 256
/// tokens became complete. Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_commit(session: *mut ice_session) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { ice_session_commit_err(session, core::ptr::null_mut()) }
}

/// As ice_session_commit, with a report.
///
/// Errors: as ice_session_commit; the message names the part's field and row.
/// Threads: exclusive. Allocates: never. Cost: as ice_session_commit. Since 0.2.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_commit_err(session: *mut ice_session, err: *mut ice_error) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { guard::call("ice_session_commit_err", err, || exclusive(session, Session::commit)) }
}

fn part_layout(session: &Session, rows: usize) -> Result<Layout> {
    let mut plan = Plan::new();
    session.work_plan(rows, &mut plan)?;
    plan.finish()
}

/// Part `ith` of attention of `rows` query rows over the published tokens.
///
/// Shapes: q [heads_q, rows, dim_k]; out [heads_q, rows, dim_v]; lse [heads_q, rows]; batch strides are not used.
/// @param mask        nullable: causal, the last row standing at the last token.
/// @param lse         nullable: log-sum-exp of each row's logits.
/// @param work        nullable: memory is then allocated for the call. Else shared by all parts, aligned to 64 bytes.
/// @param work_bytes  bytes of `work`, at least what ice_session_work_required says for all nth parts together; 0 when
///                    `work` is NULL.
/// @param ith, nth    part and number of parts; the result does not depend on nth. In accelerated and auto mode it does on
///                    what was attended before the last commit: keys that were heavy then stay known for rows that follow.
/// @param stats       nullable; of this part; filled by ice_attention_stats_init before.
/// Errors: as ice_attention, ICE_ERR_ARGUMENT (ith, nth, an output that overlaps what is read), ICE_ERR_STATE (no mask, and more rows than tokens).
/// Threads: partitioned; shared with other readers. Allocates: never with work. Cost: O(rows len (dim_k + dim_v)) per
/// query head exact, top_k instead of len in top-k mode; in accelerated mode what stats->pairs of stats->pairs_dense
/// says, and a look at one mean per 16 tokens. Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_attend(
    session: *const ice_session,
    q: *const ice_tensor,
    rows: usize,
    mask: *const ice_mask,
    out: *const ice_tensor_mut,
    lse: *mut f32,
    work: *mut c_void,
    work_bytes: usize,
    ith: u32,
    nth: u32,
    stats: *mut ice_attention_stats,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_session_attend", err, || {
            let object = shared(session)?;
            let session = &object.inner.session;
            check_part(ith, nth)?;
            let stats = stats_output(stats)?;
            let (heads, dim_k, dim_v) = (session.options().heads_q, session.options().dim_k, session.options().dim_v);
            let q = tensor(cast::pointer(q, "q")?.as_ref(), [1, heads, rows, dim_k], names!("q"))?;
            let mask = match cast::nullable_sized(mask, "mask")? {
                Some(m) => Some(view::mask(&m, rows, session.len())?),
                None => None,
            };
            let out = tensor_mut(cast::pointer(out, "out")?.as_ref(), [1, heads, rows, dim_v], names!("out"))?;
            let mask_place = Place::of_mask(mask.as_ref().unwrap_or(&Mask::None), 1, heads);
            let outputs = [(Place::of_mut(&out), "out"), (Place::array(lse, heads * rows), "lse")];
            overlap::refuse(&outputs, &[Place::of(&q), mask_place])?;
            let lse = view::by_row(lse, 1, heads, rows, "lse")?;
            let memory = if work.is_null() {
                work_memory(work.cast(), work_bytes, 0, Source::System)?
            } else {
                // Slices of whole blocks: each stays aligned, and no two parts share a cache line.
                let one = part_layout(session, rows)?.bytes;
                check_place(work.cast(), work_bytes, product(one, nth as usize, "nth")?, "work")?;
                work_memory(work.cast::<u8>().add(one * ith as usize), one, one, Source::System)?
            };
            let done = session
                .attend(&Attend::new(q, &out).mask(mask).lse(lse.as_ref()).part(ith as usize, nth as usize), &memory)?;
            if let Some(out) = stats {
                out.write(view::stats(&done));
            }
            Ok(())
        })
    }
}

/// Bytes and alignment of the work memory of ice_session_attend, for all `nth` parts together.
///
/// @param rows          most query rows of a call.
/// @param bytes, align  outputs, in bytes.
/// Errors: ICE_ERR_ARGUMENT (nth), ICE_ERR_NO_MEMORY (too large for the address space).
/// Threads: shared. Allocates: never. Cost: O(1). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_work_required(
    session: *const ice_session,
    rows: usize,
    nth: u32,
    bytes: *mut usize,
    align: *mut usize,
) -> ice_status {
    // SAFETY: passed on by the caller.
    guard::plain(|| unsafe {
        let session = &shared(session)?.inner.session;
        check_part(0, nth)?;
        let total = || {
            let one = part_layout(session, rows)?;
            Ok(Layout { bytes: product(one.bytes, nth as usize, "nth")?, align: one.align })
        };
        put_layout(total, bytes, align)
    })
}

/// Keeps the first `len` tokens; more than there are is an error.
///
/// Errors: ICE_ERR_ARGUMENT (len), ICE_ERR_STATE (appended tokens wait for a commit).
/// Threads: exclusive. Allocates: never. Cost: O(removed) per head in the index, which is sorted anew where the longest key goes.
/// With cells O(len (dim_k + dim_v) / 16), and O(len dim_k^2 / 8) when a complete segment of 256 tokens goes. Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_truncate(session: *mut ice_session, len: usize) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { ice_session_truncate_err(session, len, core::ptr::null_mut()) }
}

/// As ice_session_truncate, with a report.
///
/// Errors: as ice_session_truncate.
/// Threads: exclusive. Allocates: never. Cost: as ice_session_truncate. Since 0.2.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_truncate_err(
    session: *mut ice_session,
    len: usize,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { guard::call("ice_session_truncate_err", err, || exclusive(session, |s| s.truncate(len))) }
}

/// Removes tokens begin .. end (end excluded); later tokens move down.
///
/// Errors: ICE_ERR_ARGUMENT (range), ICE_ERR_STATE (appended tokens wait for a commit).
/// Threads: exclusive. Allocates: never. Cost: O(len - begin) per head, and with cells their gathering anew from the
/// segment of `begin` on. Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_remove_range(session: *mut ice_session, begin: usize, end: usize) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { ice_session_remove_range_err(session, begin, end, core::ptr::null_mut()) }
}

/// As ice_session_remove_range, with a report.
///
/// Errors: as ice_session_remove_range.
/// Threads: exclusive. Allocates: never. Cost: as ice_session_remove_range. Since 0.2.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_remove_range_err(
    session: *mut ice_session,
    begin: usize,
    end: usize,
    err: *mut ice_error,
) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { guard::call("ice_session_remove_range_err", err, || exclusive(session, |s| s.remove_range(begin, end))) }
}

/// Removes every token and keeps the memory.
///
/// Threads: exclusive. Allocates: never. Cost: O(capacity). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_reset(session: *mut ice_session) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe { ice_session_reset_err(session, core::ptr::null_mut()) }
}

/// As ice_session_reset, with a report.
///
/// Errors: none but of the handle: ICE_ERR_NULL, ICE_ERR_STATE (freed or broken).
/// Threads: exclusive. Allocates: never. Cost: as ice_session_reset. Since 0.2.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_reset_err(session: *mut ice_session, err: *mut ice_error) -> ice_status {
    // SAFETY: passed on by the caller.
    unsafe {
        guard::call("ice_session_reset_err", err, || {
            exclusive(session, |s| {
                s.reset();
                Ok(())
            })
        })
    }
}

/// Published tokens; 0 for NULL.
///
/// Threads: shared. Allocates: never. Cost: O(1). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_len(session: *const ice_session) -> usize {
    // SAFETY: passed on by the caller.
    guard::value(0, || unsafe { Ok(shared(session)?.inner.session.len()) })
}

/// Byte counts of the session.
///
/// @param out  filled by ice_memory_init before.
/// Errors: ICE_ERR_ABI (struct_size).
/// Threads: shared. Allocates: never. Cost: O(1). Since 0.1.
///
/// # Safety
/// Pointers are valid as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_session_memory(session: *const ice_session, out: *mut ice_memory) -> ice_status {
    // SAFETY: passed on by the caller.
    guard::plain(|| unsafe {
        let session = &shared(session)?.inner.session;
        cast::SizedOutput::new(out, "out")?.write(memory::report(session.memory()));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_everything_once() {
        for n in [0, 1, 3, 8, usize::MAX] {
            for nth in [1, 2, 3, 7, 16, u32::MAX] {
                let ends = [0, 1, nth / 2, nth - 1];
                assert_eq!((part(n, 0, nth).start, part(n, nth - 1, nth).end), (0, n));
                for ith in ends.into_iter().filter(|i| i + 1 < nth) {
                    assert_eq!(part(n, ith, nth).end, part(n, ith + 1, nth).start);
                }
            }
        }
        assert!(check_part(0, 0).is_err() && check_part(2, 2).is_err() && check_part(1, 2).is_ok());
    }
}
