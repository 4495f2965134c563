//! Handles: what an `ice_x *` points to, how it is made, checked, borrowed and taken apart.

use crate::alloc_hook::{Source, check_place};
use crate::cast;
use core::mem::offset_of;
use core::ptr::NonNull;
use iceformer_core::mem::{Layout, Memory, Plan};
use iceformer_core::{Error, Result, Status};

/// An opaque type of the header.
pub(crate) trait Handle: Sized {
    /// What is behind it.
    type Inner;
    /// Marks live handles of this type.
    const MAGIC: u32;
    /// Argument name in messages.
    const NAME: &'static str;
}

/// Marks of live handles, one for each type.
pub(crate) const INDEX: u32 = 0x1ce0_0001;
pub(crate) const SCRATCH: u32 = 0x1ce0_0002;
pub(crate) const SESSION: u32 = 0x1ce0_0003;

const FREED: u32 = 0x1ce0_dead;
const POISONED: u32 = 0x1ce0_bad0;

/// Memory layout of a handle.
pub(crate) struct Object<H: Handle> {
    magic: u32,
    /// Where temporaries beside the object come from.
    pub(crate) source: Source,
    memory: Memory,
    /// The object itself.
    pub(crate) inner: H::Inner,
}

/// What the handle adds to the object's own plan: the accounting block and this struct.
pub(crate) fn plan<H: Handle>(object: impl FnOnce(&mut Plan) -> Result<()>) -> Result<Layout> {
    let mut plan = Plan::new();
    Memory::plan(&mut plan);
    plan.add::<Object<H>>(1);
    object(&mut plan)?;
    plan.finish()
}

fn place<H: Handle>(
    memory: Memory,
    source: Source,
    make: impl FnOnce(&Memory) -> Result<H::Inner>,
) -> Result<NonNull<Object<H>>> {
    let inner = make(&memory)?;
    memory.place(Object { magic: H::MAGIC, source, memory: memory.clone(), inner })
}

/// Builds an object in memory of `source`.
pub(crate) fn create<H: Handle>(
    source: Source,
    limit: usize,
    make: impl FnOnce(&Memory) -> Result<H::Inner>,
) -> Result<NonNull<Object<H>>> {
    place(source.memory(limit)?, source, make)
}

/// Builds an object wholly inside caller memory.
///
/// # Safety
/// If not NULL, `mem..mem + bytes` is writable and nobody else's until the object is freed.
pub(crate) unsafe fn create_in<H: Handle>(
    mem: *mut u8,
    bytes: usize,
    need: Layout,
    limit: usize,
    make: impl FnOnce(&Memory) -> Result<H::Inner>,
) -> Result<NonNull<Object<H>>> {
    check_place(mem, bytes, need.bytes, "mem")?;
    if limit != 0 && need.bytes > limit {
        return Err(Error::new(Status::Budget, "memory_limit", "would be exceeded").need(need.bytes, limit));
    }
    let base = NonNull::new(mem).ok_or(cast::null("mem"))?;
    // SAFETY: passed on.
    let memory = unsafe { Memory::region(base, bytes)? };
    place(memory, Source::Region, make)
}

/// A handle that looks like one, with its mark, without forming a reference.
///
/// # Safety
/// As [`live`].
unsafe fn marked<H: Handle>(p: *const H) -> Result<(NonNull<Object<H>>, u32)> {
    let object = cast::pointer(p.cast::<Object<H>>(), H::NAME)?;
    // SAFETY: not NULL and aligned; read as bytes because nothing is known about it yet.
    let mark = unsafe { object.cast::<u8>().add(offset_of!(Object<H>, magic)).cast::<u32>().read() };
    Ok((object, mark))
}

/// Checks that `p` is a live handle of its type, without forming a reference.
///
/// # Safety
/// If not NULL, `p` came from a constructor of the library; freed handles in caller memory are still recognised.
pub(crate) unsafe fn live<H: Handle>(p: *const H) -> Result<NonNull<Object<H>>> {
    // SAFETY: passed on.
    match unsafe { marked(p)? } {
        (object, mark) if mark == H::MAGIC => Ok(object),
        (_, FREED) => Err(Error::new(Status::State, H::NAME, "was freed")),
        (_, POISONED) => Err(Error::new(Status::State, H::NAME, "is broken by an earlier internal error: free it")),
        _ => Err(Error::new(Status::Argument, H::NAME, "is not a handle of this type")),
    }
}

/// Shared access.
///
/// # Safety
/// As [`live`], and no exclusive call runs meanwhile.
pub(crate) unsafe fn shared<'a, H: Handle>(p: *const H) -> Result<&'a Object<H>> {
    // SAFETY: live handles point to their object; the caller keeps the thread contract.
    unsafe { live(p).map(|o| o.as_ref()) }
}

/// Exclusive access, which marks the object as broken if a panic cuts it short.
pub(crate) struct Exclusive<'a, H: Handle> {
    object: &'a mut Object<H>,
    /// A destructor of the caller may call in while another panic unwinds; that one is not ours.
    #[cfg(feature = "std")]
    unwinding: bool,
}

/// Exclusive access.
///
/// # Safety
/// As [`live`], and no other call uses the handle meanwhile.
pub(crate) unsafe fn exclusive<'a, H: Handle>(p: *mut H) -> Result<Exclusive<'a, H>> {
    // SAFETY: live handles point to their object; the caller keeps the thread contract.
    let object = unsafe { live(p)?.as_mut() };
    Ok(Exclusive {
        object,
        #[cfg(feature = "std")]
        unwinding: std::thread::panicking(),
    })
}

impl<H: Handle> core::ops::Deref for Exclusive<'_, H> {
    type Target = H::Inner;
    fn deref(&self) -> &H::Inner {
        &self.object.inner
    }
}

impl<H: Handle> core::ops::DerefMut for Exclusive<'_, H> {
    fn deref_mut(&mut self) -> &mut H::Inner {
        &mut self.object.inner
    }
}

#[cfg(feature = "std")]
impl<H: Handle> Drop for Exclusive<'_, H> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            self.object.magic = POISONED;
        }
    }
}

/// Takes an object apart. NULL and handles that are not live are left alone; broken ones are freed.
///
/// # Safety
/// As [`live`], and nobody uses the handle any more.
pub(crate) unsafe fn free<H: Handle>(p: *mut H) {
    // SAFETY: passed on.
    let object = match unsafe { marked(p) } {
        Ok((object, mark)) if mark == H::MAGIC || mark == POISONED => object,
        _ => return,
    };
    // SAFETY: a placed object of this memory, taken apart once. The mark is written so that it stays in caller memory.
    unsafe {
        let memory = object.as_ref().memory.clone();
        (&raw mut (*object.as_ptr()).magic).write_volatile(FREED);
        memory.unplace(object);
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use crate::types::*;
    use crate::{ICE_ERR_INTERNAL, guard};
    use iceformer_core::dci::{Index, IndexOptions};

    fn index() -> *mut ice_index {
        let make = |m: &_| Index::new_in(&IndexOptions::new(3), m);
        create::<ice_index>(Source::System, 0, make).expect("memory").as_ptr().cast()
    }

    #[test]
    fn a_panic_in_an_exclusive_call_breaks_the_object_and_only_that() {
        let (ix, other) = (index(), index());
        // SAFETY: live handles, used by this thread alone.
        unsafe {
            let s = guard::plain(|| {
                let _held = exclusive(ix)?;
                panic!("on purpose")
            });
            assert_eq!(s, ICE_ERR_INTERNAL);
            assert_eq!(live(ix).map(drop).unwrap_err().status, Status::State);
            assert!(exclusive(ix).is_err() && shared(ix).is_err());
            assert!(exclusive(other).is_ok());
            // A shared call that panics changes nothing.
            guard::plain(|| {
                let _held = shared(other)?;
                panic!("on purpose")
            });
            assert!(live(other).is_ok());
            free(ix);
            free(other);
        }
    }
}
