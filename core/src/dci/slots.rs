//! Slots of stored keys: what marks them, and their order.

/// The id that no key can have: it marks free slots.
pub(super) const NO_ID: u64 = u64::MAX;

/// Height of a stored key that is in no list yet.
pub(super) const UNLINKED: u8 = u8::MAX;

/// Sorts slots by their key, equal ones by id. Not inlined: one copy for all callers.
#[inline(never)]
pub(super) fn sort(moves: &mut [(u64, u32)], ids: &[u64]) {
    moves.sort_unstable_by_key(|&(key, slot)| (key, ids[slot as usize]));
}
